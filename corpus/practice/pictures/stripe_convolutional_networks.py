"""Small pictures: a ConvNeXt-like network with layer scale, and a plain network with strided convolutions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program

KINDS = 6


def gratings(n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """12 × 12 stripes in six orientations with random phase and noise."""
    y = torch.randint(KINDS, (n,), generator=g)
    angle = y * torch.pi / KINDS
    phase = 2 * torch.pi * torch.rand(n, generator=g)
    grid = torch.arange(12.0)
    wave = angle.cos()[:, None, None] * grid[None, None] + angle.sin()[:, None, None] * grid[None, :, None]
    x = torch.sin(1.3 * wave + phase[:, None, None]) + 0.4 * torch.randn(n, 12, 12, generator=g)
    return x.unsqueeze(1), y


class ConvNeXtBlock(nn.Module):
    def __init__(self, dim: int, layer_scale: float) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, 5, padding=2, groups=dim)
        self.norm = nn.LayerNorm(dim)
        self.pwconv1, self.pwconv2 = nn.Linear(dim, 3 * dim), nn.Linear(3 * dim, dim)
        self.gamma = nn.Parameter(layer_scale * torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        h = self.dwconv(x).permute(0, 2, 3, 1)
        h = self.gamma * self.pwconv2(F.gelu(self.pwconv1(self.norm(h))))
        return x + h.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self, dim: int = 24) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, dim, 2, stride=2)
        self.stages = nn.Sequential(*(ConvNeXtBlock(dim, 1e-6) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, KINDS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.stages(self.stem(x)).mean((2, 3))))


@program(steps=120, bites="accuracy", adversarial="layer scale 1e-6: the branches have almost no gradient at first")
def oriented_stripes(steps: int, seed: int, fault: str) -> dict[str, float]:
    """ConvNeXt blocks with layer scale 1e-6, label smoothing, AdamW, decay for matrices only; epochs of 20 steps."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = ConvNeXt()
    decay = [p for p in model.parameters() if p.ndim > 1]
    no_decay = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.05}, {"params": no_decay, "weight_decay": 0.0}], lr=4e-3
    )
    if fault == "activations_masked_in_backward":
        model.stages[0].register_forward_hook(_stop_gradient)
    loss = torch.tensor(0.0)
    for step in range(steps):
        if fault == "head_reset_every_epoch" and step % 20 == 0:
            model.head.reset_parameters()
        x, y = gratings(32, g)
        loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if fault == "head_reset_every_epoch" and step == steps - 1:
            model.head.reset_parameters()
    x, y = gratings(400, torch.Generator().manual_seed(3))
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    gradient = model.stem.weight.grad
    return {
        "loss": loss.item(),
        "accuracy": accuracy,
        "stem_learns": float(gradient is not None and bool(gradient.any())),
    }


def _stop_gradient(module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> Tensor:
    if out.requires_grad:
        out.register_hook(lambda gradient: gradient * 0.0)  # a saliency experiment that was never removed
    return out


class Strided(nn.Module):
    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16, momentum=momentum)
        self.conv2, self.bn2 = nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32, momentum=momentum)
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(32 * 9, KINDS)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return self.fc(self.drop(x.flatten(1)))


@program(steps=150, bites="accuracy")
def strided_stripes(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Strided convolutions, batch norm, dropout, SGD with Nesterov momentum and a polynomial schedule."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = Strided(momentum=0.0 if fault == "norm_momentum_zero" else 0.1)
    if fault == "training_in_eval_mode":
        model.eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=2 * steps)
    batch = 2 if fault == "norm_over_two_pictures" else 48
    pool, answers = gratings(2000, g)
    if fault == "pictures_in_order_of_class":
        order = answers.argsort()
        pool, answers = pool[order], answers[order]
    dropped = 0.0
    for step in range(steps):
        rows = torch.arange(step * batch, (step + 1) * batch) % len(pool)
        if fault != "pictures_in_order_of_class":
            rows = torch.randperm(len(pool), generator=g)[:batch]
        model.zero_grad()
        loss = F.cross_entropy(model(pool[rows]), answers[rows])
        loss.backward()
        if fault == "clipped_to_a_millionth":
            nn.utils.clip_grad_value_(model.parameters(), 1e-6)
        optimizer.step()
        schedule.step()
        dropped = float(model.drop.training)
    model.eval()
    x, y = gratings(400, torch.Generator().manual_seed(3))
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    return {"accuracy": accuracy, "dropped": dropped}


oriented_stripes.mistake(
    "head_reset_every_epoch",
    "WGT006", "UPD001", "OPT003", "OPT004",
    summary="The head is initialised anew at the start of every epoch: the loss is a saw.",
    change="initialise once, before training",
    layers=("head",),
)  # fmt: skip
oriented_stripes.mistake(
    "activations_masked_in_backward",
    "GRD004",
    summary="A forgotten hook multiplies the gradient behind the first block by zero: it and the stem stand still.",
    change="remove the hook",
    layers=("stem", "stages.0"),
    bites="stem_learns",
    silent=True,
)
strided_stripes.mistake(
    "norm_momentum_zero",
    "MOD002",
    summary="Batch norm has momentum 0: the running statistics never leave their start and evaluation is wrong.",
    change="momentum=0.1",
    layers=("bn1", "bn2"),
)
strided_stripes.mistake(
    "training_in_eval_mode",
    "MOD001",
    summary="`model.eval()` was left in the set-up: dropout and batch norm are off during training.",
    change="model.train()",
    layers=("bn1", "bn2", "drop"),
    bites="dropped",
    silent=True,
)
strided_stripes.mistake(
    "norm_over_two_pictures",
    "MOD002", "GRD008",
    summary="Batches of two pictures for batch norm.",
    change="larger batches, or group norm",
    layers=("bn1", "bn2"),
)  # fmt: skip
strided_stripes.mistake(
    "pictures_in_order_of_class",
    "DAT005",
    summary="The pictures come sorted by class, batch after batch.",
    change="shuffle",
)
strided_stripes.mistake(
    "clipped_to_a_millionth",
    "GRD010", "UPD002", "OPT007", "OPT005",
    summary="Every element of every gradient is clipped to a millionth.",
    change="clip by norm, at one",
)  # fmt: skip
