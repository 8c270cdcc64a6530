"""Which way does the grain run? An MLP-mixer on small pictures of wood, SGD, a loss scaler and bfloat16."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from corpus.case import program

GRAINS, SIDE, PATCH = 5, 12, 3
TOKENS = (SIDE // PATCH) ** 2


def veneers(count: int, roughness: float = 1.0) -> tuple[Tensor, Tensor]:
    """Stripes at one of five angles, of any pitch and phase, under noise."""
    y = torch.randint(GRAINS, (count,))
    angle = (y * math.pi / GRAINS)[:, None, None]
    row, col = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    pitch, phase = 0.8 + 0.6 * torch.rand(count, 1, 1), 6.28 * torch.rand(count, 1, 1)
    stripes = torch.sin(pitch * (row * angle.sin() + col * angle.cos()) + phase)
    return stripes + roughness * torch.randn(count, SIDE, SIDE), y


def patches_of(pictures: Tensor) -> Tensor:
    cut = pictures.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH)
    return cut.reshape(len(pictures), TOKENS, PATCH * PATCH)


class MixerBlock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm_a, self.norm_b = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.across = nn.Sequential(nn.Linear(TOKENS, 32), nn.GELU(), nn.Linear(32, TOKENS))
        self.within = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm_a(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norm_b(x))


class Mixer(nn.Module):
    def __init__(self, dim: int = 32, depth: int = 3, out: int = GRAINS) -> None:
        super().__init__()
        self.patch = nn.Linear(PATCH * PATCH, dim)
        self.blocks = nn.ModuleList([MixerBlock(dim) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, out)

    def tokens(self, pictures: Tensor) -> Tensor:
        x = self.patch(patches_of(pictures))
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.out(self.tokens(pictures).mean(1))


@torch.no_grad()
def right(model: nn.Module, seed: int) -> float:
    torch.manual_seed(seed + 31337)
    x, y = veneers(500)
    return (model(x).argmax(1) == y).float().mean().item()


def finite(value: Tensor) -> float:
    return value.detach().float().nan_to_num(1e6).clamp(-1e6, 1e6).item()


@program(steps=150, bites="right")
def marquetry(steps: int, seed: int, fault: str) -> dict[str, float]:
    """bfloat16 autocast with a loss scaler, clipping after unscaling, Nesterov momentum."""
    torch.manual_seed(seed)
    model = Mixer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    if fault == "veneer_rate_times_batch":
        optimizer.param_groups[0]["lr"] = 0.1 * 48  # "linear scaling", but the 0.1 was for this batch already
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**13)
    loss = torch.zeros(())
    for _ in range(steps):
        x, y = veneers(48)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if fault != "veneer_clipped_before_unscaling":
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return {"loss": finite(loss), "right": right(model, seed)}


marquetry.mistake(
    "veneer_clipped_before_unscaling",
    "GRD010", "UPD002",
    summary="The clip sees gradients 8192 times too large: it leaves a unit vector, which is then unscaled.",
    change="scaler.unscale_(optimizer) before the clip",
)  # fmt: skip
marquetry.mistake(
    "veneer_rate_times_batch",
    "OPT007", "UPD001", "OPT001", "OPT003", "OPT004", "GRD002",
    summary="The rate is multiplied by the batch size although it was chosen for that batch.",
    change="lr=0.1",
)  # fmt: skip


@program(steps=140, bites="right")
def marquetry_by_pieces(steps: int, seed: int, fault: str) -> dict[str, float]:
    """One small batch per step at first, ten from step 80; a rate per layer that falls towards the input."""
    torch.manual_seed(seed)
    model = Mixer()
    decay = 0.02 if fault == "veneer_decay_with_a_zero_too_many" else 0.8
    stages = [model.out, model.norm, *reversed(model.blocks), model.patch]
    groups = [{"params": list(stage.parameters()), "lr": 0.15 * decay**depth} for depth, stage in enumerate(stages)]
    optimizer = torch.optim.SGD(groups, lr=0.15, momentum=0.9)
    loss, divisor = torch.zeros(()), 1
    for step in range(steps):
        pieces = 1 if step < 80 else 10
        divisor = 1 if fault == "veneer_pieces_forgotten_at_eighty" else pieces
        optimizer.zero_grad()
        for _ in range(pieces):
            x, y = veneers(16)
            loss = cross_entropy(model(x), y) / divisor
            loss.backward()
        optimizer.step()
    return {"loss": finite(loss * divisor), "right": right(model, seed)}


marquetry_by_pieces.mistake(
    "veneer_pieces_forgotten_at_eighty",
    "LSS004", "OPT007", "UPD001", "OPT001", "OPT003", "OPT004", "GRD002", "GRD006", "NUM001",
    "NUM002", "NUM003", "NUM004",
    summary="From step 80 ten micro-batches make a step, and their losses are added.",
    change="divide by the number of micro-batches",
    onset=80,
)  # fmt: skip
marquetry_by_pieces.mistake(
    "veneer_decay_with_a_zero_too_many",
    "UPD002", "OPT007",
    summary="The rate falls by 0.02 per layer instead of 0.8: the layers near the input get a rate of 1e-8.",
    change="decay = 0.8",
    layers=("patch", "blocks"),
)  # fmt: skip


@program(steps=150, bites="right", adversarial="an optimizer that is built again has lost its memory")
def marquetry_in_three_stages(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Smooth wood first, rougher wood later; each stage has a new optimizer and a smaller rate, as planned."""
    torch.manual_seed(seed)
    model, loss = Mixer(), torch.zeros(())
    for roughness, rate in ((0.4, 3e-3), (0.7, 1.5e-3), (1.0, 7e-4)):
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        for _ in range(max(1, steps // 3)):
            x, y = veneers(48, roughness)
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
    return {"loss": loss.item(), "right": right(model, seed)}


@program(steps=150, bites="right", adversarial="a training loss that stays high means that nothing is learnt")
def marquetry_inlaid(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Every picture is glued from two, with both labels (CutMix): the loss cannot fall far."""
    torch.manual_seed(seed)
    model = Mixer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    loss = torch.zeros(())
    for _ in range(steps):
        x, y = veneers(48, 0.8)
        other = torch.randperm(48)
        width = int(torch.randint(1, SIDE, ()))
        x[:, :, :width] = x[other, :, :width]
        share = width / SIDE
        optimizer.zero_grad()
        logits = model(x)
        loss = (1 - share) * cross_entropy(logits, y, label_smoothing=0.1)
        loss = loss + share * cross_entropy(logits, y[other], label_smoothing=0.1)
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "right": right(model, seed)}


@program(steps=150)
def marquetry_restored(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A masked autoencoder: half of the patches are hidden and must be painted in."""
    torch.manual_seed(seed)
    model = Mixer(out=PATCH * PATCH)
    hidden = nn.Parameter(torch.zeros(PATCH * PATCH))
    model.register_parameter("hidden", hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        x, _ = veneers(48, 0.1)
        goal = patches_of(x)
        mask = torch.rand(48, TOKENS, 1) < 0.5
        h = model.patch(torch.where(mask, hidden, goal))
        for block in model.blocks:
            h = block(h)
        loss = mse_loss(model.out(model.norm(h))[mask.squeeze(2)], goal[mask.squeeze(2)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}
