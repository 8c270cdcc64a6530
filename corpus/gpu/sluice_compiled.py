"""Two small models that are compiled: one reads gauges of a sluice, one foretells the level of the water."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program
from corpus.gpu.sizes import DRIFT, GAUGE


def compiled(model: nn.Module, device: torch.device) -> Callable[[Tensor], Tensor]:
    return torch.compile(model) if device.type == "cuda" else model  # without a GPU it is not worth the wait


class Step(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(functional.gelu(self.wide(self.norm(x))))


class GaugeNet(nn.Module):
    def __init__(self, gauges: int, width: int, depth: int, answers: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(gauges, width), *(Step(width) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, answers))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


class Weir:
    """Gauges and what follows from them: products of neighbours, waves, and the higher of two."""

    def __init__(self, gauges: int, answers: int, seed: int, device: torch.device) -> None:
        self.dice = torch.Generator(device).manual_seed(seed)
        self.gauges = gauges
        mixing = torch.randn(2, gauges, 4 * answers, generator=self.dice, device=device) / math.sqrt(gauges)
        self.first, self.second = mixing

    def read(self, count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, self.gauges, generator=self.dice, device=self.first.device)
        a, b = x @ self.first, x @ self.second
        a, b = a.unflatten(1, (4, -1)), b.unflatten(1, (4, -1))
        return x, a[:, 0] * b[:, 0] + torch.sin(2 * a[:, 1]) + a[:, 2].maximum(b[:, 2])


@program(steps=GAUGE.steps)
def gauge_compiled(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """A compiled residual net computes flows from the gauges of a sluice."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    weir = Weir(GAUGE.length, GAUGE.kinds, seed, device)
    net = GaugeNet(GAUGE.length, GAUGE.width, GAUGE.depth, GAUGE.kinds).to(device)
    if mistake == "gauge_compiled_head_first":  # the head alone at first, and the rest is never let go
        net.backbone.requires_grad_(False)
    fast = compiled(net, device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=GAUGE.rate, fused=device.type == "cuda")
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, GAUGE.rate, total_steps=GAUGE.steps + 1)
    for _ in range(steps):
        x, flows = weir.read(GAUGE.batch)
        loss = functional.smooth_l1_loss(fast(x), flows)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
    with torch.no_grad():
        x, flows = weir.read(2048)
        return {"loss": functional.mse_loss(net(x), flows).item() / flows.var().item()}


gauge_compiled.mistake(
    "gauge_compiled_head_first",
    "UPD003",
    summary="The backbone, which nobody has trained, is left frozen.",
    change="everything is trained",
    layers=["backbone"],
)


class Mixer(nn.Module):
    """One layer over time, one over channels."""

    def __init__(self, width: int, reach: int) -> None:
        super().__init__()
        self.time = nn.Conv1d(width, width, 3, dilation=reach)
        self.channels = nn.Conv1d(width, width, 1)
        self.pad = 2 * reach

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.channels(functional.gelu(self.time(functional.pad(x, (self.pad, 0))))))


class DriftNet(nn.Module):
    def __init__(self, width: int, depth: int, ahead: int) -> None:
        super().__init__()
        self.enter = nn.Conv1d(1, width, 5, padding=4)
        self.mixers = nn.Sequential(*(Mixer(width, 2**at) for at in range(depth)))
        self.forecast = nn.Conv1d(width, ahead, 1)

    def forward(self, level: Tensor) -> Tensor:
        x = self.enter(level.unsqueeze(1))[..., : level.shape[-1]]
        return self.forecast(self.mixers(x))


def levels(count: int, length: int, dice: torch.Generator) -> Tensor:
    """A tide, a swell that is not quite its multiple, and a hand on the sluice that turns the level round."""
    device = dice.device
    clock = torch.arange(length, device=device).float()
    slow, fast, size, lift = (torch.rand(count, 1, generator=dice, device=device) for _ in range(4))
    tide = torch.sin(clock * (0.15 + 0.15 * slow) + 6.28 * fast)
    swell = (0.3 + size) * torch.sin(clock * (0.7 + 0.5 * fast) + 6.28 * slow)
    level = tide + swell * torch.sign(torch.sin(clock * 0.05 + 6.28 * lift))
    return level + 0.05 * torch.randn(count, length, generator=dice, device=device)


@program(steps=DRIFT.steps)
def drift_compiled(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """A compiled stack of causal convolutions foretells the next levels of the water."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    dice = torch.Generator(device).manual_seed(seed)
    ahead = DRIFT.kinds
    model = DriftNet(DRIFT.width, DRIFT.depth, ahead).to(device)
    fast = compiled(model, device)
    trained = 1 if mistake == "drift_compiled_grown" else DRIFT.depth
    groups = [{"params": model.enter.parameters(), "lr": DRIFT.rate}]
    groups += [{"params": model.mixers[at].parameters(), "lr": DRIFT.rate * 0.9**at} for at in range(trained)]
    groups.append({"params": model.forecast.parameters(), "lr": DRIFT.rate})
    optimizer = torch.optim.AdamW(groups, weight_decay=1e-3)

    def batch(count: int) -> tuple[Tensor, Tensor]:
        series = levels(count, DRIFT.length + ahead, dice)
        wanted = series.unfold(1, ahead, 1)[:, 1 : DRIFT.length + 1].transpose(1, 2)
        return series[:, : DRIFT.length], wanted

    start = DRIFT.length // 2
    for step in range(steps):
        if step == DRIFT.steps * 3 // 4:
            for group in optimizer.param_groups:
                group["lr"] /= 5
        series, wanted = batch(DRIFT.batch)
        loss = functional.mse_loss(fast(series)[..., start:], wanted[..., start:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    with torch.no_grad():
        series, wanted = batch(256)
        return {"loss": functional.mse_loss(model(series)[..., start:], wanted[..., start:]).item()}


drift_compiled.mistake(
    "drift_compiled_grown",
    "UPD003",
    summary="The model has grown by three layers that no group of the optimizer has.",
    change="every layer has its group",
    layers=["mixers.1", "mixers.2", "mixers.3"],
)
