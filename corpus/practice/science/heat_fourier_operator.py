"""A Fourier neural operator learns how a profile of temperature on a ring drifts and spreads."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, MultiStepLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

from corpus.case import program

POINTS, MODES = 64, 10


def simulate(n: int, seed: int) -> TensorDataset:
    """Initial profile, profile later, and the heat that has flowed into the sink."""
    g = torch.Generator().manual_seed(seed)
    k = torch.arange(1, 9)
    size = torch.randn(n, 8, generator=g) / k
    phase = 6.2832 * torch.rand(n, 8, generator=g)
    x = torch.arange(POINTS) * 6.2832 / POINTS
    before = (size[..., None] * torch.cos(k[:, None] * x + phase[..., None])).sum(1)
    spectrum = torch.fft.rfft(before)
    wave = torch.arange(spectrum.shape[1])
    after = torch.fft.irfft(spectrum * torch.exp(-0.05 * wave**2 - 0.8j * wave), n=POINTS)
    after = after - 0.1 * after.square()
    return TensorDataset(before, after, 2 * after.abs().mean(1))


class SpectralConv(nn.Module):
    def __init__(self, width: int, complex_weight: bool = False) -> None:
        super().__init__()
        weight = torch.randn(MODES, width, width, 2) / width
        self.weight = nn.Parameter(torch.view_as_complex(weight) if complex_weight else weight)

    def forward(self, h: Tensor) -> Tensor:
        weight = self.weight if self.weight.is_complex() else torch.view_as_complex(self.weight)
        spectrum = torch.fft.rfft(h)
        low = torch.einsum("bik,kio->bok", spectrum[..., :MODES], weight)
        return torch.fft.irfft(low, n=POINTS)


class FNO(nn.Module):
    def __init__(self, width: int = 16, depth: int = 3, complex_weight: bool = False) -> None:
        super().__init__()
        self.lift = nn.Conv1d(2, width, 1)
        self.spectral = nn.ModuleList(SpectralConv(width, complex_weight) for _ in range(depth))
        self.skip = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(depth))
        self.project = nn.Sequential(nn.Conv1d(width, 32, 1), nn.GELU(), nn.Conv1d(32, 1, 1))
        self.sink = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, 1))

    def forward(self, before: Tensor) -> tuple[Tensor, Tensor]:
        place = torch.linspace(-1, 1, POINTS).expand_as(before)
        h = self.lift(torch.stack([before, place], 1))
        for spectral, skip in zip(self.spectral, self.skip, strict=True):
            h = h + nn.functional.gelu(spectral(h) + skip(h))
        return self.project(h)[:, 0], self.sink(h.abs().mean(-1))


class Trainer:
    """Epochs over a loader, a scheduler, nothing else."""

    def __init__(self, model: FNO, optimizer: torch.optim.Optimizer, scheduler: LRScheduler, fault: str = "") -> None:
        self.model, self.optimizer, self.scheduler, self.fault = model, optimizer, scheduler, fault
        self.seen = 0

    def losses(self, batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        before, after, heat = batch
        profile, sink = self.model(before)
        if self.fault != "rods_sink_column":
            sink = sink.squeeze(-1)
        field = (profile - after).square().mean() / after.square().mean()
        return field, (sink - heat).pow(2).mean()

    def epoch(self, loader: DataLoader[tuple[Tensor, ...]], limit: int) -> None:
        for batch in loader:
            if self.seen == limit:
                return
            field, sink = self.losses(batch)
            loss = field + sink
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.seen += 1
            if self.fault == "rods_gamma_per_batch":
                self.scheduler.step()
        if self.fault != "rods_gamma_per_batch":
            self.scheduler.step()

    def fit(self, train: TensorDataset, steps: int, batch: int = 32) -> None:
        loader = DataLoader(train, batch_size=batch, shuffle=True)
        while self.seen < steps:
            self.epoch(loader, steps)

    @torch.no_grad()
    def test(self, seed: int) -> dict[str, float]:
        field, sink = self.losses(list(simulate(128, 9000 + seed).tensors))
        return {"field": min(field.item(), 1e6), "sink": min(sink.item(), 1e6)}


@program(steps=160, bites="field")
def rods(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A Fourier neural operator with two outputs, Adam, the rate halved after some epochs of sixteen batches."""
    torch.manual_seed(seed)
    model = FNO()
    lr = {"rods_rate_three_zeros_short": 4e-6, "rods_rate_of_a_fifth": 0.2}.get(fault, 4e-3)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.99))
    scheduler = StepLR(optimizer, step_size=3, gamma=0.5)
    trainer = Trainer(model, optimizer, scheduler, fault)
    trainer.fit(simulate(512, seed), steps)
    trainer.fault = ""
    return trainer.test(seed)


rods.mistake(
    "rods_gamma_per_batch",
    "OPT007", "UPD002",
    summary="The scheduler is set up in epochs and stepped in batches: the rate halves every third batch.",
    change="scheduler.step() once per epoch",
)  # fmt: skip
rods.mistake(
    "rods_rate_three_zeros_short",
    "OPT007", "UPD002", "OPT005", "OPT002",
    summary="The learning rate is 4e-6: a slip in the exponent.",
    change="4e-3",
)  # fmt: skip
rods.mistake(
    "rods_rate_of_a_fifth",
    "OPT007", "UPD001", "OPT001", "GRD002", "OPT003", "OPT004",
    summary="The rate of a plain descent, 0.2, is given to Adam.",
    change="4e-3",
)  # fmt: skip
rods.mistake(
    "rods_sink_column",
    "LSS002",
    summary="The second output keeps its last axis: a column minus a row is a matrix of all differences.",
    change="squeeze the output",
    layers=("sink",),
    bites="sink",
)


@program(steps=160, bites="field", adversarial="weights that are not real numbers; a rate that falls to almost nothing")
def rods_in_complex(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The spectral weights are complex parameters; the rate is annealed to zero over the run."""
    torch.manual_seed(seed)
    model = FNO(complex_weight=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    scheduler = LambdaLR(optimizer, lambda epoch: max(0.0, 1 - epoch * 16 / steps) ** 2)
    trainer = Trainer(model, optimizer, scheduler)
    trainer.fit(simulate(512, seed), steps)
    return trainer.test(seed)


@program(steps=150, bites="field", adversarial="a gradient that is almost wholly clipped in every step")
def rods_on_a_leash(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Adamax behind a clip of 0.01: it does not mind. The loss is in thousandths."""
    torch.manual_seed(seed)
    model = FNO()
    optimizer = torch.optim.Adamax(model.parameters(), lr=6e-3)
    scheduler = MultiStepLR(optimizer, [100, 130], gamma=0.3)
    trainer = Trainer(model, optimizer, scheduler)
    loader = DataLoader(simulate(512, seed), batch_size=32, shuffle=True)
    done = 0
    while done < steps:
        for batch in loader:
            field, sink = trainer.losses(batch)
            optimizer.zero_grad()
            (1000 * (field + sink)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
            scheduler.step()
            done += 1
            if done == steps:
                break
    return trainer.test(seed)
