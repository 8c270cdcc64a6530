"""Take the noise out of a short sound: a U-shaped network of one-dimensional convolutions."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from corpus.case import program

LENGTH = 64


def sounds(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """(noisy, clean), both n × 1 × LENGTH."""
    g = torch.Generator().manual_seed(seed)
    t = torch.linspace(0, 1, LENGTH)
    clean = torch.zeros(n, LENGTH)
    for _ in range(3):
        freq = 2 + 10 * torch.rand(n, 1, generator=g)
        phase = 6.28 * torch.rand(n, 1, generator=g)
        clean += torch.rand(n, 1, generator=g) * torch.sin(6.28 * freq * t + phase)
    noisy = clean + 0.5 * torch.randn(n, LENGTH, generator=g)
    return noisy[:, None], clean[:, None]


class UNet1d(nn.Module):
    def __init__(self, momentum: float = 0.1, normed: bool = True) -> None:
        super().__init__()

        def stage(a: int, b: int) -> nn.Sequential:
            norm = nn.BatchNorm1d(b, momentum=momentum) if normed else nn.Identity()
            return nn.Sequential(nn.Conv1d(a, b, 5, padding=2), norm, nn.ReLU())

        self.down1, self.down2 = stage(1, 10), stage(10, 20)
        self.bottom = nn.Sequential(nn.Conv1d(20, 32, 5, padding=2), nn.ReLU())
        self.up2, self.up1 = stage(32 + 20, 16), stage(16 + 10, 10)
        self.out = nn.Conv1d(10, 1, 1)
        self.pool = nn.AvgPool1d(2)
        self.stretch = nn.Upsample(scale_factor=2)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(self.pool(a))
        c = self.bottom(self.pool(b))
        d = self.up2(torch.cat([self.stretch(c), b], 1))
        return self.out(self.up1(torch.cat([self.stretch(d), a], 1)))


def spectrum(x: Tensor) -> Tensor:
    return torch.fft.rfft(x, dim=-1).abs()


@program(steps=90, bites="test_error")
def sound_cleaner(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Squared error in time and a little of it in the logarithm of the spectrum."""
    torch.manual_seed(seed)
    noisy, clean = sounds(400, seed)
    if fault == "spectrum_of_silence":
        clean[200:210] = 0.0  # ten clips of digital silence, met in the second half
    # In the framework this was ported from, momentum means the share of the old value: 0.999 there is 0.001 here.
    net = UNet1d(momentum=0.001 if fault == "momentum_of_the_other_framework" else 0.1)
    if fault == "bottom_pushed_down":
        nn.init.constant_(cast(Tensor, net.bottom[0].bias), -4.0)
    optim = torch.optim.Adam(net.parameters(), lr=3e-3)
    if fault == "bottom_masked":
        cast(Tensor, net.bottom[0].weight).register_hook(lambda grad: grad * 0.0)  # an unfinished pruning mask
    start = cast(Tensor, net.bottom[0].weight).detach().clone()
    floor = 0.0 if fault == "spectrum_of_silence" else 0.1
    for step in range(steps):
        half = 0 if step < 45 else 200
        pick = half + torch.randperm(200)[:32]
        if fault == "spectrum_of_silence" and step == 45:
            pick[0] = 200
        est = net(noisy[pick])
        loss = (est - clean[pick]).square().mean()
        loss = (
            loss + 0.02 * (torch.log(spectrum(est) + floor) - torch.log(spectrum(clean[pick]) + floor)).square().mean()
        )
        optim.zero_grad()
        loss.backward()
        optim.step()
    moved = (cast(Tensor, net.bottom[0].weight) - start).norm().nan_to_num(1e6).item()
    net.eval()
    noisy, clean = sounds(100, seed + 77)
    with torch.no_grad():
        error = (net(noisy) - clean).square().mean()
        bottom = net.bottom(net.pool(net.down2(net.pool(net.down1(noisy)))))
    return {
        "test_error": error.nan_to_num(1e6).item(),
        "alive": (bottom > 0).any(-1).any(0).float().mean().item(),
        "moved": moved,
    }


sound_cleaner.mistake(
    "spectrum_of_silence",
    "NUM002", "NUM001", "NUM003", "DAT002",
    summary="The logarithm of the spectrum of digital silence is minus infinity.",
    change="add a floor before the logarithm",
    onset=45,
)  # fmt: skip
sound_cleaner.mistake(
    "momentum_of_the_other_framework",
    "MOD002",
    summary="BatchNorm's momentum is 0.001: its running statistics stay where they began.",
    change="the default of 0.1",
    layers=("down1.1", "down2.1", "up1.1", "up2.1"),
)
sound_cleaner.mistake(
    "bottom_pushed_down",
    "ACT001", "GRD004",
    summary="The bias of the lowest convolution starts at -4, so none of its channels ever fires.",
    change="the usual bias",
    layers=("bottom",),
    bites="alive",
    silent=True,
)  # fmt: skip
sound_cleaner.mistake(
    "bottom_masked",
    "GRD004", "UPD003",
    summary="A hook left over from a pruning experiment zeroes the gradient of the lowest convolution.",
    change="remove the hook",
    layers=("bottom",),
    bites="moved",
    silent=True,
)  # fmt: skip


@program(steps=80, bites="test_error", adversarial="a negative loss that keeps falling has the wrong sign")
def sound_decibels(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """The loss is minus the signal-to-noise ratio in decibels: it goes below zero when training goes well."""
    torch.manual_seed(seed)
    noisy, clean = sounds(400, seed)
    net = UNet1d()
    optim = torch.optim.Adam(net.parameters(), lr=3e-3)
    decibels = 0.0
    for _ in range(steps):
        pick = torch.randperm(400)[:32]
        signal, error = clean[pick].square().sum(-1), (net(noisy[pick]) - clean[pick]).square().sum(-1)
        loss = -10 * torch.log10(signal / (error + 1e-4) + 1e-4).mean()
        optim.zero_grad()
        loss.backward()
        optim.step()
        decibels = loss.item()
    net.eval()
    noisy, clean = sounds(100, seed + 77)
    with torch.no_grad():
        return {"test_error": (net(noisy) - clean).square().mean().item(), "loss": decibels}


@program(steps=80, bites="test_error", adversarial="a gain and a direction that move at different speeds are a fault")
def sound_weight_norm(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Weight normalisation splits every kernel into a length and a direction."""
    torch.manual_seed(seed)
    noisy, clean = sounds(400, seed)
    net = UNet1d(normed=False)
    for module in net.modules():
        if isinstance(module, nn.Conv1d):
            weight_norm(module)
    optim = torch.optim.Adam(net.parameters(), lr=4e-3)
    for _ in range(steps):
        pick = torch.randperm(400)[:32]
        loss = nn.functional.l1_loss(net(noisy[pick]), clean[pick])
        optim.zero_grad()
        loss.backward()
        optim.step()
    noisy, clean = sounds(100, seed + 77)
    with torch.no_grad():
        return {"test_error": (net(noisy) - clean).square().mean().item()}


@program(steps=80, bites="test_error", adversarial="each module runs once in a step")
def sound_checkpointed(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Activations are thrown away and computed again in the backward pass."""
    torch.manual_seed(seed)
    noisy, clean = sounds(400, seed)
    net = UNet1d(normed=False)
    optim = torch.optim.Adam(net.parameters(), lr=4e-3)
    for _ in range(steps):
        pick = torch.randperm(400)[:32]
        estimate = cast(Tensor, checkpoint(net, noisy[pick], use_reentrant=False))
        loss = nn.functional.mse_loss(estimate, clean[pick])
        optim.zero_grad()
        loss.backward()
        optim.step()
    noisy, clean = sounds(100, seed + 77)
    with torch.no_grad():
        return {"test_error": (net(noisy) - clean).square().mean().item()}
