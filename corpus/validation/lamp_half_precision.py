"""Half precision by hand: lamps seen through fog, trained with a loss scale as on the big machine."""

from __future__ import annotations

import torch
import torch.nn as nn
from torch import Tensor

from corpus.case import program

LAMPS = 6


def sightings(seed: int, n: int = 480) -> tuple[Tensor, Tensor]:
    """Every lamp has its rhythm of light and dark; fog adds noise and dims."""
    torch.manual_seed(1000 + seed)
    lamp = torch.randint(LAMPS, (n,))
    t = torch.arange(64)
    period = 4 + 2 * lamp
    offset = torch.randint(32, (n,))
    shine = ((t[None] + offset[:, None]) % period[:, None] < 2).float()
    return (shine * (0.5 + torch.rand(n, 1)) + 0.25 * torch.randn(n, 64) - 0.3), lamp


class Energy(nn.Module):
    """Loudness over time: the sum of squares, divided by its length."""

    def __init__(self, half_sum: bool = False, gain: float = 1.0) -> None:
        super().__init__()
        self.half_sum = half_sum
        self.gain = gain

    def forward(self, h: Tensor) -> Tensor:
        if self.half_sum:
            return (h * self.gain).half().square().sum(-1).float() / h.shape[-1]
        return h.square().mean(-1)


class Lookout(nn.Module):
    def __init__(self, half_sum: bool = False) -> None:
        super().__init__()
        self.ears = nn.Conv1d(1, 24, 9, padding=4)
        self.mix = nn.Conv1d(24, 32, 9, padding=4)
        self.energy = Energy(half_sum, gain=120.0)
        self.norm = nn.LayerNorm(32)
        self.fc = nn.Linear(32, 32)
        self.out = nn.Linear(32, LAMPS)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.ears(x.unsqueeze(1)))
        h = torch.relu(self.mix(h))
        h = self.norm(self.energy(h))
        return self.out(torch.relu(self.fc(h)))


def through_half(model: nn.Module, scale: float = 1.0) -> None:
    """What a gradient kept in sixteen bits looks like when it comes back."""
    for p in model.parameters():
        if p.grad is not None:
            p.grad.copy_((p.grad * scale).half().float() / scale)


@program(steps=160, bites="accuracy")
def foghorn(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A convolution net on rhythms of light; bf16 autocast, a gradient scaler, clipping, SGD."""
    x, y = sightings(seed)
    torch.manual_seed(seed)
    model = Lookout(half_sum=fault == "foghorn_energy_in_half")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0, growth_interval=1000)
    loss_value, first = 0.0, 0.0
    for step in range(steps):
        if fault == "foghorn_late_half" and step == 70:
            model.energy.half_sum = True  # "faster inference" patch, merged too early
        idx = torch.randint(len(x), (32,))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = model(x[idx])
        loss = nn.functional.cross_entropy(scores.float(), y[idx])
        if fault == "foghorn_no_scaler":
            (loss * 1e-7).backward()  # divided for an all-reduce that is not there
            through_half(model)
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.mul_(1e7)
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            if fault != "foghorn_clips_what_is_scaled":
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            scaler.step(optimizer)
            scaler.update()
        loss_value = loss.item() if loss.isfinite() else 1e4
        first = loss_value if step == 0 else first
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    return {"loss": loss_value, "first": first, "accuracy": accuracy}


foghorn.mistake(
    "foghorn_clips_what_is_scaled",
    "GRD010", "UPD002", "OPT007", "OPT005",
    summary="The gradients are clipped to 2 while they are still multiplied by 4096.",
    change="unscale before clipping",
)  # fmt: skip
foghorn.mistake(
    "foghorn_no_scaler",
    "NUM005", "GRD004",
    summary="The loss is made tiny and its gradients pass through sixteen bits: most of them are rounded to zero.",
    change="scale the loss up, not down",
)  # fmt: skip
foghorn.mistake(
    "foghorn_energy_in_half",
    "NUM005", "NUM004", "NUM002",
    summary="The sum of squares of 64 loud samples is taken in sixteen bits and is infinite.",
    change="sum in single precision",
    layers=("energy",),
)  # fmt: skip
foghorn.mistake(
    "foghorn_late_half",
    "NUM005", "NUM004", "NUM002",
    summary="At step 70 a patch moves the sum of squares to sixteen bits, where it is infinite.",
    change="sum in single precision",
    layers=("energy",),
    onset=70,
)  # fmt: skip


@program(steps=160, bites="accuracy", adversarial="infinite gradients in the first steps: non-finite gradients")
def foghorn_seeks_its_scale(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A scaler that begins far too high, finds infinities, skips these steps and comes down, as it should."""
    x, y = sightings(seed)
    torch.manual_seed(seed)
    model = Lookout()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, backoff_factor=0.03, growth_interval=2000)
    loss_value, first = 0.0, 0.0
    for step in range(steps):
        idx = torch.randint(len(x), (32,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[idx]), y[idx])
        scaler.scale(10 * loss).backward()
        scaler.step(optimizer)
        scaler.update()
        first = loss.item() if step == 0 else first
        loss_value = loss.item()
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    return {"loss": loss_value, "first": first, "accuracy": accuracy}


@program(steps=160, bites="accuracy", adversarial="weights in sixteen bits whose small updates are rounded")
def foghorn_master_weights(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A bfloat16 working copy computes, a single-precision master copy learns."""
    x, y = sightings(seed)
    torch.manual_seed(seed)
    master = Lookout()
    optimizer = torch.optim.Adam(master.parameters(), lr=3e-3)
    loss_value, first = 0.0, 0.0
    for step in range(steps):
        idx = torch.randint(len(x), (32,))
        work = {k: v.to(torch.bfloat16) for k, v in master.named_parameters()}
        optimizer.zero_grad()
        scores = torch.func.functional_call(master, work, (x[idx].to(torch.bfloat16),))
        loss = nn.functional.cross_entropy(scores.float(), y[idx])
        loss.backward()
        optimizer.step()
        first = loss.item() if step == 0 else first
        loss_value = loss.item()
    with torch.no_grad():
        accuracy = (master(x).argmax(1) == y).float().mean().item()
    return {"loss": loss_value, "first": first, "accuracy": accuracy}
