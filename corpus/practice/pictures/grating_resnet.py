"""Gratings at any phase, told apart by a small residual network: SGD with Nesterov momentum under a one-cycle rate."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import program

SIDE, CLASSES = 12, 5


def make_textures(n: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (n,), generator=g)
    angle = labels[:, None, None] * math.pi / CLASSES
    phase = 2 * math.pi * torch.rand(n, 1, 1, generator=g)
    rows = torch.arange(SIDE).float()[None, :, None]
    cols = torch.arange(SIDE).float()[None, None, :]
    waves = torch.sin(1.3 * (rows * angle.cos() + cols * angle.sin()) + phase)
    return (waves + 0.8 * torch.randn(n, SIDE, SIDE, generator=g))[:, None], labels


class ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(fn.relu(self.norm1(self.conv1(x)))))
        return fn.relu(x + y)


class TextureNet(nn.Module):
    def __init__(self, width: int = 12, depth: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(*[ResidualBlock(width) for _ in range(depth)])
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = fn.relu(self.stem_norm(self.stem(x)))
        return self.head(self.blocks(x).mean((2, 3)))


@torch.no_grad()
def accuracy_of(net: nn.Module, x: Tensor, y: Tensor) -> float:
    was_training = net.training
    net.eval()
    right = (net(x).argmax(1) == y).float().mean().item()
    net.train(was_training)
    return right


@program(steps=100, bites="accuracy")
def grating_resnet(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A residual network on gratings, validated once on the way."""
    torch.manual_seed(seed)
    x, y = make_textures(480, seed)
    test_x, test_y = make_textures(200, seed + 1000)
    net = TextureNet()
    if fault == "backbone_of_nothing":
        # The recipe for a pretrained backbone, but nobody loaded the weights.
        for parameter in net.parameters():
            parameter.requires_grad = False
        net.head = nn.Linear(net.head.in_features, CLASSES)
    batch = 2 if fault == "pairs_of_gratings" else 32
    peak = 8.0 if fault == "peak_of_eight" else 0.1
    opt = torch.optim.SGD(
        [p for p in net.parameters() if p.requires_grad], lr=peak / 10, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    cycle = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=peak, total_steps=steps, pct_start=0.3)
    in_train_mode = 0
    loss = torch.tensor(0.0)
    for step in range(steps):
        if step == 35:
            if fault == "eval_since_validation":
                net.eval()
                net(test_x)
            else:
                accuracy_of(net, test_x, test_y)
        in_train_mode += net.training
        idx = torch.randint(len(x), (batch,))
        loss = fn.cross_entropy(net(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        cycle.step()
    return {
        "loss": loss.nan_to_num(1e6, 1e6).item(),
        "accuracy": accuracy_of(net, test_x, test_y),
        "in_train_mode": in_train_mode / steps,
    }


norms = ["stem_norm", *[f"blocks.{block}.{norm}" for block in range(2) for norm in ("norm1", "norm2")]]

grating_resnet.mistake(
    "backbone_of_nothing",
    "UPD003",
    summary="The backbone is frozen as for fine-tuning, but it still has its random first weights.",
    change="train the backbone, too",
    layers=("stem", "stem_norm", "blocks"),
)
grating_resnet.mistake(
    "pairs_of_gratings",
    "MOD002", "GRD008",
    summary="BatchNorm sees two pictures at a time.",
    change="a batch of 32",
    layers=norms,
)  # fmt: skip
grating_resnet.mistake(
    "peak_of_eight",
    "OPT007", "UPD001", "OPT001", "OPT003", "GRD002",
    summary="The peak of the one-cycle rate is eighty times too high.",
    change="a peak of 0.1",
)  # fmt: skip
grating_resnet.mistake(
    "eval_since_validation",
    "MOD001",
    summary="Validation calls eval(), and nothing calls train() afterwards.",
    change="call train() after validation",
    layers=norms,
    onset=35,
    bites="in_train_mode",
    silent=True,
)


@program(steps=90, bites="accuracy", adversarial="a zero gradient at the first step means a dead branch")
def grating_zero_gamma(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """The last normalisation of each branch starts at zero, so every block starts as the identity."""
    torch.manual_seed(seed)
    x, y = make_textures(480, seed)
    net = TextureNet()
    for module in net.modules():
        if isinstance(module, ResidualBlock):
            nn.init.zeros_(module.norm2.weight)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        idx = torch.randint(len(x), (32,))
        loss = fn.cross_entropy(net(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item(), "accuracy": accuracy_of(net, *make_textures(200, seed + 1000))}


@program(steps=90, bites="accuracy", adversarial="a loss that stays far above zero is a plateau")
def grating_smoothed_labels(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Smoothed labels keep the loss near its floor of one nat while the network learns all there is."""
    torch.manual_seed(seed)
    x, y = make_textures(480, seed)
    net = TextureNet()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.3)
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        idx = torch.randint(len(x), (32,))
        loss = criterion(net(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item(), "accuracy": accuracy_of(net, *make_textures(200, seed + 1000))}


@program(steps=110, bites="accuracy", adversarial="BatchNorm in eval mode while gradients flow is a mistake")
def grating_fine_tuned(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Fine-tuning with BatchNorm fixed on purpose: its parameters are frozen and its statistics are good ones."""
    torch.manual_seed(seed)
    x, y = make_textures(480, seed)
    net = TextureNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    loss = torch.tensor(0.0)
    for step in range(steps):
        if step == steps * 2 // 3:
            for module in net.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
                    module.requires_grad_(False)
            opt = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.01, momentum=0.9)
        idx = torch.randint(len(x), (32,))
        loss = fn.cross_entropy(net(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item(), "accuracy": accuracy_of(net, *make_textures(200, seed + 1000))}
