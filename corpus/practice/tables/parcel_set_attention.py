"""What kind of household ordered this parcel? A parcel is a set of things; attention decides what matters in it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from corpus.case import program

KINDS, THINGS, ROOM = 5, 30, 9


class Depot:
    def __init__(self, seed: int) -> None:
        self.g = torch.Generator().manual_seed(seed + 11)
        self.taste = torch.softmax(2.2 * torch.randn(KINDS, THINGS, generator=self.g), dim=1)

    def parcels(self, n: int, empty: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        kind = torch.randint(KINDS, (n,), generator=self.g)
        things = torch.multinomial(self.taste[kind], ROOM, replacement=True, generator=self.g)
        filled = torch.randint(2, ROOM + 1, (n, 1), generator=self.g)
        if empty:
            filled[0] = 0
        return things, torch.arange(ROOM) < filled, kind


class AttentionPool(nn.Module):
    def __init__(self, size: int, floor: float) -> None:
        super().__init__()
        self.key = nn.Linear(size, size)
        self.value = nn.Linear(size, size)
        self.query = nn.Parameter(torch.randn(size))
        self.floor = floor

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        score = self.key(x) @ self.query / math.sqrt(x.shape[-1])
        weight = torch.softmax(score.masked_fill(~there, self.floor), dim=1)
        return (weight[..., None] * self.value(x)).sum(1)


class ParcelNet(nn.Module):
    def __init__(self, floor: float = -1e4, size: int = 24) -> None:
        super().__init__()
        self.thing = nn.Sequential(nn.Embedding(THINGS, size), nn.Linear(size, size), nn.ReLU())
        self.pool = AttentionPool(size, floor)
        self.kind = nn.Sequential(nn.LayerNorm(size), nn.Linear(size, KINDS))

    def forward(self, things: Tensor, there: Tensor, through_numpy: bool = False) -> Tensor:
        x = self.thing(things)
        if through_numpy:  # a colleague's function that drops duplicates works on arrays
            x = torch.from_numpy(x.detach().numpy().copy())
        return self.kind(self.pool(x, there))


@program(steps=160, bites="accuracy")
def parcels(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Sets of two to nine things with a mask; after a while an empty parcel comes now and then."""
    torch.manual_seed(seed)
    depot = Depot(seed)
    model = ParcelNet(floor=float("-inf") if fault == "parcels_nothing_to_attend" else -1e4)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    start = model.thing[1].weight.detach().clone()  # pyright: ignore
    for step in range(steps):
        things, there, kind = depot.parcels(48, empty=step >= 70 and step % 10 == 0)
        through_numpy = fault == "parcels_through_numpy" and step >= 30
        loss = nn.functional.cross_entropy(model(things, there, through_numpy), kind)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step == 30:
            start = model.thing[1].weight.detach().clone()  # pyright: ignore
    things, there, kind = depot.parcels(800)
    with torch.no_grad():
        right = (model(things, there).argmax(1) == kind).float().mean().item()
    moved = (model.thing[1].weight.detach() - start).norm().nan_to_num(1e6).item()  # pyright: ignore
    return {"loss": loss.item() if loss.isfinite() else 1e9, "accuracy": right, "moved": moved}


parcels.mistake(
    "parcels_nothing_to_attend",
    "NUM004", "NUM002", "NUM001", "NUM003",
    summary="Empty places are masked with minus infinity: an empty parcel is a softmax over nothing.",
    change="a large finite number, or no empty parcels",
    layers=("pool",),
    onset=70,
)  # fmt: skip
parcels.mistake(
    "parcels_through_numpy",
    "GRD003",
    "UPD003",
    summary="From step thirty the things' vectors pass through a function on arrays: no gradient comes back to them.",
    change="a function on tensors",
    layers=("thing",),
    onset=30,
    bites="moved",
    silent=True,
)


@program(steps=140, bites="accuracy", adversarial="a forward pass under no_grad cuts the gradient")
def parcels_at_rest(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A layer is applied until it comes to rest, without gradients, and once more with them."""
    torch.manual_seed(seed)
    depot = Depot(seed)

    class Rest(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.inside = nn.utils.parametrizations.spectral_norm(nn.Linear(size, size))

        def forward(self, x: Tensor) -> Tensor:
            z = torch.zeros_like(x)
            with torch.no_grad():
                for _ in range(6):
                    z = torch.tanh(0.8 * self.inside(z) + x)
            return torch.tanh(0.8 * self.inside(z) + x)

    table, rest, head = nn.Embedding(THINGS, 24), Rest(24), nn.Linear(24, KINDS)
    opt = torch.optim.Adam([*table.parameters(), *rest.parameters(), *head.parameters()], lr=5e-3)
    loss, hits = torch.tensor(0.0), 0.0
    for _ in range(steps):
        things, there, kind = depot.parcels(48)
        bag = (table(things) * there[..., None]).sum(1) / there.sum(1, keepdim=True)
        out = head(rest(bag))
        loss = nn.functional.cross_entropy(out, kind)
        opt.zero_grad()
        loss.backward()
        opt.step()
        hits = 0.9 * hits + 0.1 * (out.argmax(1) == kind).float().mean().item()
    return {"loss": loss.item(), "accuracy": hits}


@program(steps=140, bites="accuracy", adversarial="low precision underflows")
def parcels_in_bfloat(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The same kind of net under bfloat16 autocast, with a rate that falls along a line."""
    torch.manual_seed(seed)
    depot = Depot(seed)
    model = ParcelNet()
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    falls = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.05, total_iters=steps)
    loss, hits = torch.tensor(0.0), 0.0
    for _ in range(steps):
        things, there, kind = depot.parcels(48)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(things, there)
            loss = nn.functional.cross_entropy(out, kind)
        opt.zero_grad()
        loss.backward()
        opt.step()
        falls.step()
        hits = 0.9 * hits + 0.1 * (out.argmax(1) == kind).float().mean().item()
    return {"loss": loss.item(), "accuracy": hits}
