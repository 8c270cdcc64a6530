"""Melodies for a carillon: the next note, by attention or by recurrence, and a few listeners."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program

NOTES, BARS = 24, 16


def melodies(g: torch.Generator, n: int, length: int = BARS + 1) -> Tensor:
    """A melody walks up or down by the same interval, and turns round now and then; note 0 is the rest."""
    note = torch.randint(NOTES, (n,), generator=g)
    step = torch.randint(1, 4, (n,), generator=g) * (2 * torch.randint(2, (n,), generator=g) - 1)
    tune = [note]
    for beat in range(1, length):
        if beat % 4 == 0:
            note = torch.where(
                torch.rand(n, generator=g) < 0.2, torch.zeros(n, dtype=torch.long), (note + step) % NOTES
            )
        else:
            note = (note + step) % NOTES
        tune.append(note)
    return torch.stack(tune, 1)


class Attend(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, w = x.shape
        q, k, v = (part.view(n, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(n, t, w))


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.n1, self.attend = nn.LayerNorm(width), Attend(width, 4)
        self.n2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.n1(x))
        return x + self.mlp(self.n2(x))


class Carillon(nn.Module):
    def __init__(self, rest_is_padding: bool = False, cut_after: int | None = None) -> None:
        super().__init__()
        width = 32
        self.note = nn.Embedding(NOTES, width, padding_idx=0 if rest_is_padding else None)
        self.beat = nn.Embedding(BARS, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.ring = nn.Linear(width, NOTES)
        self.cut_after = cut_after

    def forward(self, notes: Tensor) -> Tensor:
        x = self.note(notes) + self.beat.weight[: notes.shape[1]]
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i == self.cut_after:
                x = torch.tensor(x.tolist())  # rounded for the log, they said
        return self.ring(self.norm(x))


@program(steps=110)
def chimes(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two pre-norm layers, AdamW with betas of 0.9 and 0.95, warm-up and cosine."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = Carillon(
        rest_is_padding=fault == "chimes_rest_is_padding", cut_after=0 if fault == "chimes_copied_for_the_log" else None
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.95), weight_decay=0.01)
    plan = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1.0, (s + 1) / 15) * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1.0, s / steps))))
    )
    rest, first = model.note.weight[0].detach().clone(), model.layers[0].get_submodule("mlp").get_parameter("0.weight")
    before = first.detach().clone()
    tail: list[float] = []
    for _ in range(steps):
        tune = melodies(g, 24)
        loss = functional.cross_entropy(model(tune[:, :-1]).flatten(0, 1), tune[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        plan.step()
        tail = [*tail[-9:], loss.item()]
    return {
        "loss": sum(tail) / len(tail),
        "rest_moved": (model.note.weight[0].detach() - rest).norm().item(),
        "first_moved": (first.detach() - before).norm().item(),
    }


chimes.mistake(
    "chimes_rest_is_padding",
    "GRD004", "UPD003", "DAT006",
    summary="padding_idx=0 was copied from another model, but note 0 is the rest: its vector is zero for ever.",
    change="no padding_idx, or a padding of its own",
    layers=("note",),
    bites="rest_moved",
    silent=True,
)  # fmt: skip
chimes.mistake(
    "chimes_copied_for_the_log",
    "GRD003", "UPD003",
    summary="The first layer's output is copied through Python numbers: nothing below it gets a gradient.",
    change="log a copy and go on with the original",
    layers=("note", "beat", "layers.0"),
    bites="first_moved",
    silent=True,
)  # fmt: skip


class Bellows(nn.Module):
    """Twelve narrow layers from a melody to its mood."""

    def __init__(self, depth: int, act: type[nn.Module], width: int = 40) -> None:
        super().__init__()
        self.hear = nn.Linear(BARS, width)
        stack: list[nn.Module] = []
        for _ in range(depth):
            stack += [nn.Linear(width, width), act()]
        self.stack = nn.Sequential(*stack)
        self.mood = nn.Linear(width, 4)

    def forward(self, tune: Tensor) -> Tensor:
        return self.mood(self.stack(torch.tanh(self.hear(tune))))


@program(steps=150, bites="accuracy")
def chimes_mood(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Is the melody sad, calm, merry or wild? Ten tanh layers with Xavier weights."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = Bellows(10, nn.Tanh)
    gain = {"chimes_weights_faint": 0.27}.get(fault, 5 / 3)
    for m in model.stack:
        if isinstance(m, nn.Linear):
            nn.init.xavier_normal_(m.weight, gain=gain * 0.75)
            nn.init.zeros_(m.bias)
    if fault == "chimes_one_bell_too_loud":
        nn.init.normal_(model.stack.get_parameter("8.weight"), 0, 25.0)
    if fault == "chimes_one_bell_somewhat_loud":
        nn.init.normal_(model.stack.get_parameter("8.weight"), 0, 12.0)
    if fault == "chimes_every_weight_zero":
        for m in model.modules():
            if isinstance(m, nn.Linear):
                nn.init.zeros_(m.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    direction = torch.randn(BARS, 2, generator=torch.Generator().manual_seed(2))

    def lesson(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, BARS, generator=g)
        side = x @ direction
        return x, (side[:, 0] > 0).long() * 2 + (side[:, 1] > 0).long()

    loss = torch.zeros(())
    for _ in range(steps):
        x, mood = lesson(64)
        loss = functional.cross_entropy(model(x), mood)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x, mood = lesson(600)
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == mood).float().mean().item()
    return {"loss": loss.item(), "accuracy": accuracy}


chimes_mood.mistake(
    "chimes_weights_faint",
    "WGT003", "GRD001", "ACT003",
    summary="Xavier weights with a gain of 0.2 instead of 1.25: the signal is gone before the last layer.",
    change="the gain for tanh",
)  # fmt: skip
chimes_mood.mistake(
    "chimes_one_bell_too_loud",
    "WGT003", "ACT002",
    summary="The fifth layer is drawn with a deviation of 25: its tanh units answer plus or minus one only.",
    change="the same start as the other layers",
    layers=("stack.8", "stack.9"),
)  # fmt: skip
chimes_mood.mistake(
    "chimes_one_bell_somewhat_loud",
    "WGT003", "ACT002",
    summary="The fifth layer is drawn with a deviation of 12, fifty times that of its neighbours.",
    change="the same start as the other layers",
    layers=("stack.8", "stack.9"),
)  # fmt: skip
chimes_mood.mistake(
    "chimes_every_weight_zero",
    "WGT002", "GRD004",
    summary="All weights start at zero: only the last bias can ever learn.",
    change="draw the weights",
)  # fmt: skip


@program(steps=110, adversarial="a key bias has no gradient: softmax cannot see it")
def chimes_in_bfloat(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The same carillon under bfloat16 autocast, with clipping at one."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = Carillon()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        tune = melodies(g, 24)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(tune[:, :-1])
        loss = functional.cross_entropy(out.float().flatten(0, 1), tune[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=150, adversarial="the loss stands still, so it does not learn: two small tables must find each other")
def chimes_by_pairs(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Next note from the last two notes: a product of two small tables, a slow start and then a fall."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = nn.ModuleDict({"a": nn.Embedding(NOTES, 48), "b": nn.Embedding(NOTES, 48), "out": nn.Linear(48, NOTES)})
    for name in ("a", "b"):
        nn.init.normal_(model[name].get_parameter("weight"), 0, 0.01)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    loss = torch.zeros(())
    for _ in range(steps):
        tune = melodies(g, 48)
        joint = model["a"](tune[:, :-2]) * model["b"](tune[:, 1:-1])
        loss = functional.cross_entropy(model["out"](joint).flatten(0, 1), tune[:, 2:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=180)
def chimes_fill_the_gaps(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A fifth of the notes is hidden; an encoder layer of the library guesses them."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.ModuleDict({"note": nn.Embedding(NOTES + 1, 32), "beat": nn.Embedding(BARS, 32), "layer": layer})
    model["out"] = nn.Linear(32, NOTES)
    optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        tune = melodies(g, 48, BARS)
        hidden = torch.rand(tune.shape, generator=g) < 0.2
        seen = torch.where(hidden, NOTES, tune)
        h = model["layer"](model["note"](seen) + model["beat"].get_parameter("weight"))
        loss = functional.cross_entropy(model["out"](h)[hidden], tune[hidden])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}
