"""Which section of a brass band is playing? Spectra of short frames, in sixteen bits where the tutorial says so."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from corpus.case import program

SECTIONS, FRAMES, BINS = 6, 12, 24


def rehearse(count: int, g: torch.Generator, loudness: float = 1.0) -> tuple[Tensor, Tensor]:
    """Each section has two formants; the player wanders between them from frame to frame."""
    section = torch.randint(SECTIONS, (count,), generator=g)
    bins = torch.arange(BINS).view(1, 1, -1)
    wander = torch.randn(count, FRAMES, 1, generator=g)
    low = 3 + 1.5 * section.view(-1, 1, 1) + 0.8 * wander
    high = 20 - 2.2 * section.view(-1, 1, 1) - 0.8 * wander
    tone = torch.exp(-0.4 * (bins - low) ** 2) + 0.7 * torch.exp(-0.4 * (bins - high) ** 2)
    return loudness * (tone + 0.35 * torch.randn(tone.shape, generator=g)), section


class Energy(nn.Module):
    """Appends the logarithm of a frame's energy, and brings the frame to unit energy."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        energy = x.to(self.dtype).square().sum(-1, keepdim=True)
        energy = energy.to(x.dtype) if self.dtype != torch.float16 else energy.float()
        return torch.cat([x * (energy + 1e-3).rsqrt(), 0.1 * (energy + 1e-3).log()], -1)


class BandNet(nn.Module):
    def __init__(self, energy: torch.dtype = torch.float32, width: int = 64) -> None:
        super().__init__()
        self.energy = Energy(energy)
        self.frame = nn.Sequential(nn.Linear(BINS + 1, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.piece = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, SECTIONS))

    def forward(self, x: Tensor) -> Tensor:
        return self.piece(self.frame(self.energy(x)).mean(1))


def heard_right(net: nn.Module, seed: int, loudness: float = 1.0) -> float:
    x, y = rehearse(400, torch.Generator().manual_seed(seed + 6000), loudness)
    x = x.to(next(net.parameters()).dtype)
    with torch.no_grad():
        return (net(x).argmax(1) == y).float().mean().item()


@program(steps=150, bites="accuracy")
def band_in_half(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Half precision with a scaler; the loss has the small weight that it will have beside the other tasks."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    net = BandNet()
    adam = torch.optim.Adam(net.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, enabled=fault != "band_scaler_forgotten")
    loss = torch.zeros(())
    for _ in range(steps):
        x, y = rehearse(48, g)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(net(x).float(), y) * 1e-5
        adam.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(adam)
        scaler.update()
    final = 1e5 * loss.item()
    return {"loss": final if math.isfinite(final) else 1e6, "accuracy": heard_right(net, seed)}


band_in_half.mistake(
    "band_scaler_forgotten",
    "NUM005", "GRD004", "GRD001", "UPD002", "OPT005",
    summary="The same in half precision without the scaler: gradients are below the smallest half.",
    change="GradScaler",
)  # fmt: skip


@program(steps=150, bites="accuracy")
def band_gets_louder(steps: int, seed: int, fault: str) -> dict[str, float]:
    """From step 70 the band plays at full volume; energies are summed in single precision."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    net = BandNet(torch.float16 if fault == "band_energy_adds_up_in_half" else torch.float32)
    adam = torch.optim.AdamW(net.parameters(), lr=3e-3)
    loss = torch.zeros(())
    for step in range(steps):
        loudness = 1.0 if step < 70 else 150.0
        x, y = rehearse(48, g, loudness)
        loss = nn.functional.cross_entropy(net(x), y)
        adam.zero_grad()
        loss.backward()
        adam.step()
    final = loss.item() if loss.isfinite() else 1e6
    return {"loss": final, "accuracy": heard_right(net, seed, 150.0)}


band_gets_louder.mistake(
    "band_energy_adds_up_in_half",
    "NUM005", "NUM004", "NUM001", "NUM002", "NUM003",
    summary="The energy of a frame is summed in half precision: at full volume it is infinite.",
    change="sum in single precision",
    layers=("energy",),
    onset=70,
)  # fmt: skip


@program(steps=180, bites="accuracy")
def band_fine_tuned(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A wide network at a gentle rate, AdamW."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    net = BandNet(width=192)
    if fault == "band_weights_in_bfloat16":
        net = net.bfloat16()
    adam = torch.optim.AdamW(net.parameters(), lr=1.5e-4, weight_decay=0.0)
    first = [p.detach().clone() for p in net.parameters()]
    dtype = next(net.parameters()).dtype
    loss = torch.zeros(())
    for _ in range(steps):
        x, y = rehearse(48, g)
        loss = nn.functional.cross_entropy(net(x.to(dtype)).float(), y)
        adam.zero_grad()
        loss.backward()
        adam.step()
    still = sum((a == b).sum().item() for a, b in zip(first, net.parameters()))
    return {
        "loss": loss.item(),
        "accuracy": heard_right(net, seed),
        "never_moved": still / sum(p.numel() for p in first),
    }


band_fine_tuned.mistake(
    "band_weights_in_bfloat16",
    "NUM005", "UPD002", "UPD003",
    summary="The weights themselves are bfloat16: updates are smaller than half of the gap between two numbers.",
    change="weights in single precision, autocast for the rest",
    bites="loss",
)  # fmt: skip


@program(steps=160, bites="accuracy", adversarial="a gradient that is infinite now and then is a fault")
def band_scaler_backs_off(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The scaler starts far too high and grows every twenty steps: it skips steps, as it is made to."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    net = BandNet()
    adam = torch.optim.Adam(net.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=20)
    loss = torch.zeros(())
    for _ in range(steps):
        x, y = rehearse(48, g)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(net(x).float(), y)
        adam.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(adam)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(adam)
        scaler.update()
    return {"loss": loss.item(), "accuracy": heard_right(net, seed)}


@program(steps=150, bites="accuracy", adversarial="a loss below a thousandth has vanishing gradients")
def band_in_bfloat16_with_a_small_loss(steps: int, seed: int, fault: str) -> dict[str, float]:
    """bfloat16 autocast, and a loss in millionths: bfloat16 has room for that."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    net = BandNet()
    adam = torch.optim.Adam(net.parameters(), lr=3e-3, eps=1e-16)
    loss = torch.zeros(())
    for _ in range(steps):
        x, y = rehearse(48, g)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(net(x).float(), y) * 1e-6
        adam.zero_grad()
        loss.backward()
        adam.step()
    return {"loss": 1e6 * loss.item(), "accuracy": heard_right(net, seed)}
