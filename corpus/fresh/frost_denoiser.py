"""Frost flowers on a window: diffusion models that learn to take noise from rings and from short curves."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import healthy, program

LEVELS = 100


def frost_crystals(count: int, g: torch.Generator) -> Tensor:
    """Points on six arms, in the plane, of unit variance."""
    arm = torch.randint(6, (count,), generator=g) * (math.pi / 3)
    radius = 0.4 + 1.4 * torch.rand(count, generator=g)
    points = torch.stack([radius * arm.cos(), radius * arm.sin()], dim=1)
    return points + 0.05 * torch.randn(count, 2, generator=g)


def frost_schedule() -> Tensor:
    """How much of the picture is left at each level, from one to almost nothing."""
    return torch.cos(torch.linspace(0, 0.495 * math.pi, LEVELS)).square()


class PointDenoiser(nn.Module):
    def __init__(self, width: int = 96, raw_level: bool = False) -> None:
        super().__init__()
        self.raw_level = raw_level
        self.time = nn.Sequential(nn.Linear(1 if raw_level else 16, width), nn.SiLU(), nn.Linear(width, width))
        self.enter = nn.Linear(2, width)
        self.mid = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.leave = nn.Linear(width, 2)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        if self.raw_level:
            stamp = 1000.0 * level[:, None].float()
        else:
            phase = level[:, None] / LEVELS * math.pi * 2 ** torch.arange(8).float() / 2
            stamp = torch.cat([phase.sin(), phase.cos()], dim=1)
        h = self.enter(x) + self.time(stamp)
        return self.leave(self.mid(h))


def frost_error(model: nn.Module, seed: int) -> float:
    """Mean error of the noise that the model guesses, over all levels but the first."""
    g = torch.Generator().manual_seed(seed + 3000)
    clean, left = frost_crystals(4000, g), frost_schedule()
    level = torch.randint(1, LEVELS, (4000,), generator=g)
    noise = torch.randn(4000, 2, generator=g)
    share = left[level][:, None]
    with torch.no_grad():
        guess = model.eval()(share.sqrt() * clean + (1 - share).sqrt() * noise, level)
    error = fn.mse_loss(guess, noise).item()
    return error if math.isfinite(error) else 1e3


@program(steps=300, bites="error")
def frost(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Guess the noise on points, AdamW with warm-up, an average of the weights for sampling."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    left = frost_schedule()
    model = PointDenoiser(raw_level=fault == "frost_raw_timestamps")
    average = copy.deepcopy(model).requires_grad_(False)
    eps = 0.3 if fault == "frost_cautious_adam" else 1e-8
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, eps=eps, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, 1.0, total_iters=20)
    lowest = 0 if fault == "frost_weighs_by_noise" else 1
    for _ in range(steps):
        clean = frost_crystals(128, g)
        level = torch.randint(lowest, LEVELS, (128,), generator=g)
        share = left[level][:, None]
        noise = torch.randn(128, 2, generator=g)
        noisy = share.sqrt() * clean + (1 - share).sqrt() * noise
        target = torch.randn_like(noise) if fault == "frost_draws_noise_again" else noise
        error = (model(noisy, level) - target).square()
        if fault == "frost_weighs_by_noise":
            error = error * (share / (1 - share)).clamp(min=0.1) / 5
        loss = error.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.05)
    return {"loss": loss.item(), "error": frost_error(average, seed)}


frost.mistake(
    "frost_draws_noise_again",
    "DAT004", "OPT005",
    summary="randn_like is called once for the picture and once more for the target: the noise to guess is another.",
    change="target = noise",
)  # fmt: skip
frost.mistake(
    "frost_raw_timestamps",
    "DAT001",
    summary="The level goes into the network as a number of up to a hundred thousand.",
    change="sines and cosines of level / LEVELS",
    layers=("time", "time.0"),
)
frost.mistake(
    "frost_weighs_by_noise",
    "NUM002",
    summary="The error is divided by the share of noise, and level zero, which has none, is drawn too.",
    change="draw levels from one on",
)
frost.mistake(
    "frost_cautious_adam",
    "OPT008", "UPD002",
    summary="Adam's eps is 0.3, far above the gradients: each step is a hundredth of what it should be.",
    change="eps=1e-8",
)  # fmt: skip


class CurveNet(nn.Module):
    """Residual convolutions over 32 samples; each block's last convolution starts at zero."""

    def __init__(self, width: int = 24, blank: str = "last") -> None:
        super().__init__()
        self.enter = nn.Conv1d(2, width, 5, padding=2)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.GroupNorm(4, width),
                nn.SiLU(),
                nn.Conv1d(width, width, 3, padding=1),
                nn.SiLU(),
                nn.Conv1d(width, width, 3, padding=1),
            )
            for _ in range(3)
        )
        self.leave = nn.Conv1d(width, 1, 5, padding=2)
        for block in self.blocks:
            for conv in [block[4]] if blank == "last" else [block[2], block[4]]:
                nn.init.zeros_(conv.weight)
                nn.init.zeros_(conv.bias)

    def forward(self, x: Tensor, share: Tensor) -> Tensor:
        h = self.enter(torch.cat([x, share.expand_as(x)], dim=1))
        for block in self.blocks:
            h = h + block(h)
        return self.leave(h)


def frost_curves(count: int, g: torch.Generator) -> Tensor:
    """Waves of random phase and pitch, as (count, 1, 32)."""
    pitch, phase = 1 + 3 * torch.rand(count, 1, generator=g), 6.28 * torch.rand(count, 1, generator=g)
    return 1.4 * torch.sin(pitch * torch.linspace(0, 6.28, 32) + phase)[:, None]


@program(steps=200, bites="error", adversarial="convolutions that start at zero pass no gradient")
def frost_on_a_wire(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Guess v = (noise, less the curve) with residual blocks whose last convolution starts at zero."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    blank = "all" if fault == "frost_all_blank" else "last"
    net = CurveNet(blank=blank)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    first = 0.0

    def noisy_and_target(count: int) -> tuple[Tensor, Tensor, Tensor]:
        clean, noise = frost_curves(count, g), torch.randn(count, 1, 32, generator=g)
        share = (0.5 * math.pi * torch.rand(count, 1, 1, generator=g)).cos().square()
        left, lost = share.sqrt(), (1 - share).sqrt()
        return left * clean + lost * noise, share, left * noise - lost * clean

    for _ in range(steps):
        x, share, v = noisy_and_target(32)
        loss = fn.mse_loss(net(x, share), v)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = first or loss.item()
    with torch.no_grad():
        x, share, v = noisy_and_target(512)
        return {"first": first, "loss": loss.item(), "error": fn.mse_loss(net(x, share), v).item()}


frost_on_a_wire.mistake(
    "frost_all_blank",
    "GRD004", "WGT002",
    summary="Every convolution of every block starts at zero, not only the last: none of them ever gets a gradient.",
    change="zero only the last convolution of a block",
    layers=("blocks",),
)  # fmt: skip


@healthy(steps=250, adversarial="an objective with noise in every target does not fall and is stuck")
def frost_score_matching(steps: int, seed: int) -> dict[str, float]:
    """Denoising score matching at one level of noise: the floor of the loss is far above zero."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 64), nn.Softplus(), nn.Linear(64, 64), nn.Softplus(), nn.Linear(64, 2))
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3, momentum=0.5)
    early = late = 0.0
    for step in range(steps):
        clean, noise = frost_crystals(64, g), torch.randn(64, 2, generator=g)
        loss = 0.5 * (net(clean + 0.6 * noise) + noise / 0.6).square().sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        early += loss.item() / 5 if step < 5 else 0.0
        late += loss.item() / 50 if step >= steps - 50 else 0.0
    return {"early": early, "loss": late}


@healthy(steps=180, adversarial="accumulated gradients are gradients that were not cleared")
def frost_in_four_breaths(steps: int, seed: int) -> dict[str, float]:
    """Flow matching in bf16 autocast: four small batches are averaged into each step; weights are averaged, too."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = PointDenoiser(width=64)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    early = late = 0.0
    for step in range(steps):
        total = 0.0
        for _ in range(4):
            clean, noise = frost_crystals(32, g), torch.randn(32, 2, generator=g)
            level = torch.randint(LEVELS, (32,), generator=g)
            along = level[:, None] / LEVELS
            with torch.autocast("cpu", torch.bfloat16):
                flow = model((1 - along) * clean + along * noise, level)
            part = fn.mse_loss(flow.float(), noise - clean) / 4
            part.backward()
            total += part.item()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
        early += total / 5 if step < 5 else 0.0
        late += total / 30 if step >= steps - 30 else 0.0
    return {"early": early, "loss": late}
