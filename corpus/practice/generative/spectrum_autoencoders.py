"""Squeeze a spectrum through six numbers and back: autoencoders of several kinds."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

CHANNELS, CODE = 50, 6


def spectra(n: int, seed: int) -> Tensor:
    """Three peaks of random height on a slope, standardised channel by channel."""
    g = torch.Generator().manual_seed(seed)
    at = torch.linspace(0, 1, CHANNELS)
    height = torch.rand(n, 3, generator=g)
    peaks = torch.exp(-(((at - torch.tensor([[0.2], [0.5], [0.8]])) / 0.07) ** 2))
    slope = torch.rand(n, 1, generator=g) * at
    clean = height @ peaks + slope
    return (clean - clean.mean(0)) / clean.std(0) + 0.1 * torch.randn(n, CHANNELS, generator=g)


class Squeeze(nn.Module):
    def __init__(self, activation: type[nn.Module] = nn.ReLU, width: int = 40, code: int = CODE) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(CHANNELS, width), activation(), nn.Linear(width, code))
        self.decoder = nn.Sequential(nn.Linear(code, width), activation(), nn.Linear(width, CHANNELS))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


def unexplained(model: nn.Module, x: Tensor) -> float:
    """Share of the variance that does not come back."""
    with torch.no_grad():
        share = (model(x) - x).square().mean() / x.var(0).mean()
    return min(1e6, share.nan_to_num(1e6).item())


@program(steps=120, bites="unexplained")
def spectrum_squeezer(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A sigmoid autoencoder under Adam."""
    torch.manual_seed(seed)
    x = spectra(800, seed)
    if fault == "detector_counts":
        x = 900 * x + 4000
    model = Squeeze(nn.Sigmoid)
    if fault == "limited_output":
        model.decoder.append(nn.Sigmoid())
    opt = torch.optim.Adam(model.parameters(), lr=0.5 if fault == "rate_of_a_half" else 1e-2)
    for step in range(steps):
        batch = x[torch.randint(800, (64,))]
        if fault == "cosmic_ray" and step == 70:
            batch = batch.clone()
            batch[5, 31] = float("nan")  # the detector marks a hit by a cosmic ray so
        loss = (model(batch) - batch).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"unexplained": unexplained(model, x)}


spectrum_squeezer.mistake(
    "detector_counts",
    "DAT001", "ACT002", "DAT003",
    summary="Raw counts of the detector go in: the first sigmoids are all at their limits.",
    change="standardise the spectra",
    layers=("encoder.0", "encoder.1"),
)  # fmt: skip
spectrum_squeezer.mistake(
    "limited_output",
    "LSS003", "ACT002", "OPT002",
    summary="The decoder ends in a sigmoid, but half of the values to be matched are negative.",
    change="a linear output",
    layers=("decoder.2", "decoder.3"),
)  # fmt: skip
spectrum_squeezer.mistake(
    "rate_of_a_half",
    "OPT007", "UPD001", "OPT001", "OPT003",
    summary="Adam with a rate of 0.5.",
    change="a rate of 1e-2",
)  # fmt: skip
spectrum_squeezer.mistake(
    "cosmic_ray",
    "DAT002", "NUM002", "NUM004", "NUM001", "NUM003",
    summary="One value of one spectrum is not a number.",
    change="mask such values",
    onset=70,
)  # fmt: skip


@program(steps=130, bites="unexplained", adversarial="a layer whose outputs are nearly all zero is dead")
def spectrum_few_at_once(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Of 64 code units only the eight largest speak for each spectrum: others for other spectra."""
    torch.manual_seed(seed)
    x = spectra(800, seed)
    encoder, decoder = nn.Linear(CHANNELS, 64), nn.Linear(64, CHANNELS)
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def rebuild(batch: Tensor) -> Tensor:
        code = torch.relu(encoder(batch))
        keep = code.topk(8, dim=1)
        return decoder(torch.zeros_like(code).scatter(1, keep.indices, keep.values))

    for _ in range(steps):
        batch = x[torch.randint(800, (64,))]
        loss = (rebuild(batch) - batch).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        return {"unexplained": ((rebuild(x) - x).square().mean() / x.var(0).mean()).item()}


@program(steps=150, bites="unexplained", adversarial="gradients that shrink by orders of magnitude have vanished")
def spectrum_by_heart(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Four spectra learned by heart: the loss falls by orders of magnitude, and so do the gradients."""
    torch.manual_seed(seed)
    x = spectra(40, seed)[:4]
    model = Squeeze(nn.Tanh, width=96, code=40)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        loss = (model(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"unexplained": unexplained(model, x)}
