"""Healthy: pictures, coordinates and points."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program


def crosses(n: int) -> tuple[Tensor, Tensor]:
    """Horizontal bar, vertical bar, cross or nothing on a noisy 10 × 10 field."""
    y = torch.randint(4, (n,))
    x = 0.3 * torch.randn(n, 1, 10, 10)
    row, column = torch.randint(2, 8, (n,)), torch.randint(2, 8, (n,))
    for i in range(n):
        if y[i] in (0, 2):
            x[i, 0, row[i]] += 1
        if y[i] in (1, 2):
            x[i, 0, :, column[i]] += 1
    return x, y


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * F.hardsigmoid(self.up(F.relu(self.down(x.mean((2, 3), keepdim=True)))))


class InvertedResidual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 3 * channels
        self.body = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.Hardswish(),
            SqueezeExcite(wide), nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


@program(steps=80, adversarial="hard sigmoids and ReLU6 sit at their ends by design")
def mobile_crosses(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Inverted residuals with squeeze and excitation; SGD, cosine schedule, decay."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), InvertedResidual(16), nn.MaxPool2d(2), InvertedResidual(16),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(16, 4),
    )  # fmt: skip
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x, y = crosses(32)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        cosine.step()
    return {"loss": loss.item()}


class Pretrained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.fc = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))


@program(steps=150, adversarial="batch norm in eval mode while training, with good statistics and on purpose")
def frozen_norm_finetuning(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Fine-tuning as detectors do it: batch norm keeps the statistics and the scales of the first 60 steps."""
    torch.manual_seed(seed)
    model = Pretrained()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for step in range(steps):
        if step == 60:
            norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
            for norm in norms:
                norm.eval()
                norm.requires_grad_(False)
            opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01, momentum=0.9)
        x, y = crosses(32)
        loss = F.cross_entropy(model(x if step < 60 else x.flip(1)), y if step < 60 else (y + 1) % 4)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


class Sine(nn.Module):
    def __init__(self, fan_in: int, fan_out: int, first: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(fan_in, fan_out)
        bound = 1 / fan_in if first else math.sqrt(6 / fan_in) / 30
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(30 * self.linear(x))


@program(
    steps=150, adversarial="a factor of 30 inside every activation, full batches, a loss that falls to almost nothing"
)
def siren_picture(steps: int, seed: int, fault: str) -> dict[str, float]:
    """SIREN: a network of sines is one picture; all pixels in every step."""
    torch.manual_seed(seed)
    grid = torch.linspace(-1, 1, 24)
    xy = torch.cartesian_prod(grid, grid)
    picture = (torch.sin(7 * xy[:, :1]) * torch.cos(5 * xy[:, 1:]) + (xy.norm(dim=1, keepdim=True) < 0.5).float()) / 2
    model = nn.Sequential(Sine(2, 48, first=True), Sine(48, 48), Sine(48, 48), nn.Linear(48, 1))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = F.mse_loss(model(xy), picture)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


class PointNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.local = nn.Sequential(nn.Conv1d(3, 32, 1), nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, 64, 1))
        self.overall = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3))

    def forward(self, points: Tensor) -> Tensor:
        return self.overall(self.local(points).amax(-1))


@program(steps=120, adversarial="a maximum over points: almost all gradients of the last local layer are exactly zero")
def point_clouds(steps: int, seed: int, fault: str) -> dict[str, float]:
    """PointNet tells balls, discs and sticks apart; StepLR."""
    torch.manual_seed(seed)
    model = PointNet()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.StepLR(opt, 50, 0.5)
    squash = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.1], [1.0, 0.1, 0.1]])
    loss = torch.tensor(0.0)
    for _ in range(steps):
        y = torch.randint(3, (32,))
        loss = F.cross_entropy(model(torch.randn(32, 3, 24) * squash[y].unsqueeze(-1)), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()
    return {"loss": loss.item()}


class Mixer(nn.Module):
    def __init__(self, patches: int = 25, dim: int = 24) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, dim, 2, stride=2)
        self.tokens = nn.Sequential(nn.Linear(patches, 32), nn.GELU(), nn.Linear(32, patches))
        self.channels = nn.Sequential(nn.Linear(dim, 48), nn.GELU(), nn.Linear(48, dim))
        self.norm1, self.norm2, self.head = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.Linear(dim, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return self.head((x + self.channels(self.norm2(x))).mean(1))


@program(steps=150)
def mlp_mixer(steps: int, seed: int, fault: str) -> dict[str, float]:
    """MLP-Mixer with mixup and a one-cycle schedule."""
    torch.manual_seed(seed)
    model = Mixer()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.02)
    cycle = torch.optim.lr_scheduler.OneCycleLR(opt, 5e-3, total_steps=steps)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x, y = crosses(48)
        share = torch.distributions.Beta(0.4, 0.4).sample()
        order = torch.randperm(48)
        out = model(share * x + (1 - share) * x[order])
        loss = share * F.cross_entropy(out, y) + (1 - share) * F.cross_entropy(out, y[order])
        opt.zero_grad()
        loss.backward()
        opt.step()
        cycle.step()
    return {"loss": loss.item()}


class SparseAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(32, 256), nn.Linear(256, 32)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = F.relu(self.encode(x))
        return self.decode(code), code


@program(steps=200, adversarial="nine of ten activations are zero, yet every unit is alive now and then")
def sparse_dictionary(steps: int, seed: int, fault: str) -> dict[str, float]:
    """An overcomplete autoencoder with an L1 penalty, the columns of the decoder kept at unit length by hand."""
    torch.manual_seed(seed)
    atoms = F.normalize(torch.randn(64, 32, generator=torch.Generator().manual_seed(3)), dim=1)
    model = SparseAutoencoder()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x = ((torch.rand(128, 64) < 0.06) * torch.rand(128, 64)) @ atoms
        rebuilt, code = model(x)
        loss = (rebuilt - x).square().sum(1).mean() + 0.02 * code.sum(1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            model.decode.weight.copy_(F.normalize(model.decode.weight, dim=0))
    return {"loss": loss.item()}
