"""Where did the tram start? The first stop must be remembered along the whole line."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from corpus.case import program

DEPOTS, STOPS = 5, 24


def journeys(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A depot's sign at the first stop, then passengers, doors and bells that say nothing."""
    depot = torch.randint(DEPOTS, (count,), generator=generator)
    log = 0.15 * torch.randn(count, STOPS, DEPOTS + 3, generator=generator)
    log[:, 0, :DEPOTS] += nn.functional.one_hot(depot, DEPOTS)
    return log, depot


class Driver(nn.Module):
    """A plain recurrence of rectified units that starts as the identity."""

    def __init__(self, units: int, strength: float) -> None:
        super().__init__()
        self.memory = nn.RNN(DEPOTS + 3, units, nonlinearity="relu", batch_first=True)
        self.depot = nn.Linear(units, DEPOTS)
        with torch.no_grad():
            for name, tensor in self.memory.named_parameters():
                if name == "weight_hh_l0":
                    tensor.copy_(torch.randn(units, units) if strength > 1 else strength * torch.eye(units))
                elif name.startswith("bias"):
                    tensor.zero_()

    def forward(self, log: Tensor) -> Tensor:
        _, state = self.memory(log)
        return self.depot(state[-1])


STRENGTH = {"tram_memory_fades": 0.3, "tram_memory_fades_a_little": 0.6, "tram_memory_feeds_itself": 4.0}


@program(steps=200, bites="accuracy")
def trams(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A recurrence that starts as the identity, with Adagrad and clipped gradients."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = Driver(32, STRENGTH.get(fault, 1.0))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-2)
    value = math.nan
    for _ in range(steps):
        log, depot = journeys(48, generator)
        loss = nn.functional.cross_entropy(model(log), depot)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        value = loss.item()
    log, depot = journeys(400, generator)
    with torch.no_grad():
        accuracy = (model(log).argmax(1) == depot).float().mean().item()
        late = nn.functional.cross_entropy(model(log), depot).item()
    return {"loss": late if math.isfinite(late) else 1e9, "accuracy": accuracy, "last": min(value, 1e9)}


trams.mistake(
    "tram_memory_fades", "GRD001", "WGT003",
    summary="The recurrent weights start at 0.3 of the identity: after 24 stops nothing is left of the first.",
    change="start at the identity",
    layers=("memory",),
)  # fmt: skip
trams.mistake(
    "tram_memory_fades_a_little", "GRD001", "WGT003",
    summary="The recurrent weights start at 0.6 of the identity: a hundred-thousandth of the first stop arrives.",
    change="start at the identity",
    layers=("memory",),
)  # fmt: skip
trams.mistake(
    "tram_memory_feeds_itself", "GRD002", "WGT003", "NUM001", "NUM002",
    summary="The recurrent weights start from torch.randn: the state grows fourfold at every stop.",
    change="start at the identity",
    layers=("memory",),
)  # fmt: skip


@program(steps=160, bites="accuracy", adversarial="state carried from batch to batch must be a leak")
def tram_whole_day(steps: int, seed: int, fault: str) -> dict[str, float]:
    """One long day in pieces: an LSTM gets the detached state of the piece before, and tells if a bell rang twice."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    lstm, out = nn.LSTM(1, 24), nn.Linear(24, 2)
    model = nn.ModuleList([lstm, out])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    state: tuple[Tensor, Tensor] | None = None
    parity = torch.zeros(16, dtype=torch.long)
    value, accuracy = math.nan, 0.0
    for _ in range(steps):
        bells = (torch.rand(12, 16, generator=generator) < 0.3).long()
        target = torch.stack([(bells[i - 1] + bells[i] if i else parity + bells[i]) // 2 for i in range(12)])
        parity = bells[-1]
        hidden, (h, c) = lstm(bells[:, :, None].float(), state)
        state = (h.detach(), c.detach())
        logits = out(hidden)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        value, accuracy = loss.item(), (logits.argmax(-1) == target).float().mean().item()
    return {"loss": value, "accuracy": accuracy}


@program(steps=160, bites="loss", adversarial="a gradient norm above the bound in every step is over-clipping")
def tram_arrivals_summed(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Arrival in seconds by a GRU, errors added up over the line, under Adam: the clip never rests."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    gru, out = nn.GRU(3, 24, batch_first=True), nn.Linear(24, 1)
    model = nn.ModuleDict({"gru": gru, "out": out})
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    value = math.nan
    for _ in range(steps):
        x = torch.randn(32, 15, 3, generator=generator)
        seconds = 8 * (x[..., 0] + 0.5 * x[..., 1].relu()).cumsum(1)
        guess = out(gru(x)[0]).squeeze(-1) * 20
        loss = (guess - seconds).abs().sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        value = loss.item()
    return {"loss": value / 480}
