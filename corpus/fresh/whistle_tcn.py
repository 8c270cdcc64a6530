"""Who whistles? Short sound clips for dilated convolutions, gated ones, and a network over spectra."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import healthy, program

SAMPLES, BIRDS = 96, 5


def whistles(count: int, seed: int, hiss: float = 0.5) -> tuple[Tensor, Tensor]:
    """Five birds: the tone rises, falls, bends, trills or stands."""
    rng = torch.Generator().manual_seed(seed)
    bird = torch.randint(BIRDS, (count,), generator=rng)
    t = torch.linspace(0, 1, SAMPLES)[None]
    base = 30 + 20 * torch.rand(count, 1, generator=rng)
    sweep = torch.stack([25 * t**2, -12 * t**2, 50 * (t - 0.5) ** 2, 1.2 * (18 * t).sin(), 0 * t])[bird, 0]
    wave = (base * t + sweep + 6.28 * torch.rand(count, 1, generator=rng)).sin()
    return wave + hiss * torch.randn(count, SAMPLES, generator=rng), bird


class Causal(nn.Module):
    def __init__(self, width: int, dilation: int, drop: float) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(width, width, 3, dilation=dilation))
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(fn.relu(self.conv(fn.pad(x, (self.pad, 0)))))


class WhistleTCN(nn.Module):
    def __init__(self, width: int = 16, drop: float = 0.05) -> None:
        super().__init__()
        self.entry = nn.Conv1d(1, width, 5, padding=2)
        self.stack = nn.ModuleList(Causal(width, 2**i, drop) for i in range(4))
        self.vote = nn.Linear(2 * width, BIRDS)

    def forward(self, wave: Tensor) -> Tensor:
        x = self.entry(wave[:, None])
        for layer in self.stack:
            x = layer(x)
        return self.vote(torch.cat([x.mean(2), x[..., -1]], 1))


@torch.no_grad()
def whistle_accuracy(net: nn.Module, seed: int, gain: float = 1.0) -> float:
    x, y = whistles(500, seed + 808)
    return (net.eval()(gain * x).argmax(1) == y).float().mean().item()


def depthwise_rates(net: WhistleTCN, lr: float, factor: float) -> list[dict[str, object]]:
    """The deeper, the faster: each layer's rate is `factor` times that of the next."""
    parts: list[nn.Module] = [net.entry, *net.stack, net.vote]
    return [{"params": p.parameters(), "lr": lr * factor ** (len(parts) - 1 - i)} for i, p in enumerate(parts)]


@program(steps=240, bites="accuracy")
def whistle_dawn_chorus(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Four dilated residual convolutions with weight norm by AdamW; lower layers learn a little more slowly."""
    torch.manual_seed(seed)
    x, y = whistles(4000, seed)
    net = WhistleTCN(drop=0.95 if fault == "whistle_share_to_keep" else 0.05).train()
    factor = 0.1 if fault == "whistle_lower_layers_crawl" else 0.9
    optimizer = torch.optim.AdamW(depthwise_rates(net, 4e-3, factor), weight_decay=0.01)
    if fault == "whistle_eps_of_one":
        for group in optimizer.param_groups:
            group["eps"] = 1.0
    late = 0.0
    for _ in range(steps):
        if fault == "whistle_new_optimizer_each_time":
            optimizer = torch.optim.AdamW(depthwise_rates(net, 4e-3, factor), weight_decay=0.01)
        rows = torch.randint(len(x), (32,))
        loss = fn.cross_entropy(net(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        late += 0.08 * (loss.item() - late)
    return {"loss": late, "accuracy": whistle_accuracy(net, seed)}


whistle_dawn_chorus.mistake(
    "whistle_share_to_keep",
    "MOD002", "MOD001", "GRD008",
    summary="Dropout(0.95) was meant as the share to keep: nineteen of twenty values are dropped in every layer.",
    change="Dropout(0.05)",
    layers=tuple(f"stack.{i}.drop" for i in range(4)),
)  # fmt: skip
whistle_dawn_chorus.mistake(
    "whistle_lower_layers_crawl",
    "UPD002", "OPT007",
    summary="Each layer has a tenth of the next one's rate: the entry learns at 4e-8.",
    change="factor=0.9",
    layers=("entry", "stack.0", "stack.1"),
)  # fmt: skip
whistle_dawn_chorus.mistake(
    "whistle_eps_of_one",
    "OPT008", "UPD002",
    summary="eps of AdamW is one, as some recipe for other networks says: it drowns every second moment.",
    change="eps=1e-8",
)  # fmt: skip
whistle_dawn_chorus.mistake(
    "whistle_new_optimizer_each_time",
    "OPT008",
    summary="The optimizer is made anew in every step: no moments, every weight moves by the full rate.",
    change="make it once, before the loop",
    bites="loss",
)


class LogSpectrum(nn.Module):
    def __init__(self, floor: float) -> None:
        super().__init__()
        self.floor = floor

    def forward(self, wave: Tensor) -> Tensor:
        frames = wave.unfold(1, 24, 12) * torch.hann_window(24)
        return (torch.fft.rfft(frames).abs().square() + self.floor).log()


class SpectrumGRU(nn.Module):
    def __init__(self, floor: float) -> None:
        super().__init__()
        self.front = LogSpectrum(floor)
        self.norm = nn.LayerNorm(13)
        self.gru = nn.GRU(13, 24, batch_first=True, bidirectional=True)
        self.vote = nn.Linear(48, BIRDS)

    def forward(self, wave: Tensor) -> Tensor:
        return self.vote(self.gru(self.norm(self.front(wave).to(self.vote.weight.dtype)))[0].mean(1))


@program(steps=220, bites="accuracy")
def whistle_night_recorder(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Logarithmic spectra into a GRU by Adam; from step 110 on clips come with stretches of digital silence."""
    torch.manual_seed(seed)
    x, y = whistles(3000, seed)
    net = SpectrumGRU(0.0 if fault == "whistle_log_of_silence" else 1e-3)
    if fault == "whistle_all_in_half":
        net.half()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    loss = torch.zeros(())
    for step in range(steps):
        rows = torch.randint(len(x), (32,))
        wave = x[rows].clone()
        if step >= 110:
            wave[:4, :30] = 0.0
        loss = fn.cross_entropy(net(wave).float(), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": whistle_accuracy(net, seed)}


whistle_night_recorder.mistake(
    "whistle_log_of_silence",
    "NUM004", "NUM002",
    summary="The logarithm has no floor: from step 110 on silence gives minus infinity, and the norm makes NaN of it.",
    change="log(power + 1e-3)",
    layers=("front", "norm"),
    onset=110,
)  # fmt: skip
whistle_night_recorder.mistake(
    "whistle_all_in_half",
    "NUM005", "NUM003", "OPT008",
    summary="The network is cast to half precision, its moments, too: Adam's eps rounds to zero and divides.",
    change="keep weights in float32",
    layers=("norm", "gru", "vote"),
)  # fmt: skip


@healthy(steps=240, architecture="tcn", adversarial="a rate that rises is a mistake in the schedule")
def whistle_warm_restarts(steps: int, seed: int) -> dict[str, float]:
    """A cosine that starts again every sixty steps, from a rate that is high for SGD and right here."""
    torch.manual_seed(seed)
    x, y = whistles(4000, seed)
    net = WhistleTCN()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=60)
    for _ in range(steps):
        rows = torch.randint(len(x), (32,))
        loss = fn.cross_entropy(net(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return {"loss": loss.item(), "accuracy": whistle_accuracy(net, seed)}


@healthy(steps=220, architecture="gru", adversarial="a class that is hardly seen is a broken loader")
def whistle_rare_bird(steps: int, seed: int) -> dict[str, float]:
    """Two of the five birds make up nine tenths of the clips; the loss weighs the others up."""
    torch.manual_seed(seed)
    x, y = whistles(6000, seed, hiss=0.3)
    keep = (y < 2) | (torch.rand(len(y)) < 0.08)
    x, y = x[keep], y[keep]
    weight = (len(y) / (BIRDS * torch.bincount(y, minlength=BIRDS).float())).sqrt()
    net = SpectrumGRU(1e-3)
    optimizer = torch.optim.NAdam(net.parameters(), lr=4e-3)
    for _ in range(steps):
        rows = torch.randint(len(x), (48,))
        loss = fn.cross_entropy(net(x[rows]), y[rows], weight=weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": whistle_accuracy(net, seed)}
