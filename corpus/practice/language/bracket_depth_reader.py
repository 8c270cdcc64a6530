"""Are the brackets of a line of code balanced, and how deep do they go? A reader and a small parser net."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

LENGTH, DEPTHS = 14, 5


def lines(n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """0 is any other character, 1 opens, 2 closes; the answer is the depth at the end, between zero and four."""
    rows = torch.zeros(n, LENGTH, dtype=torch.long)
    depth = torch.zeros(n, dtype=torch.long)
    for t in range(LENGTH):
        draw = torch.rand(n, generator=g)
        opens, closes = (draw < 0.35) & (depth < DEPTHS - 1), (draw > 0.65) & (depth > 0)
        depth = depth + opens.long() - closes.long()
        rows[:, t] = opens.long() + 2 * closes.long()
    return rows, depth


class PlainRNN(nn.Module):
    """h = relu(U h + V x), the identity as a start, as one does with rectified recurrences."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.V = nn.Embedding(3, hidden)
        self.U = nn.Linear(hidden, hidden)
        nn.init.normal_(self.V.weight, std=0.3)
        nn.init.eye_(self.U.weight)
        nn.init.zeros_(self.U.bias)

    def forward(self, rows: Tensor) -> Tensor:
        h = torch.zeros(len(rows), self.U.in_features)
        for t in range(rows.shape[1]):
            h = torch.relu(self.U(h) + self.V(rows[:, t]))
        return h


class Parser(nn.Module):
    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.reader = PlainRNN(hidden)
        self.answer = nn.Sequential(nn.Linear(hidden, 32), nn.ReLU(), nn.Linear(32, DEPTHS))

    def forward(self, rows: Tensor) -> Tensor:
        return self.answer(self.reader(rows))


@program(steps=200, bites="accuracy")
def semicolons(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A rectified recurrence counts brackets, clipped at one, with a rate that falls along a cosine."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = Parser()
    if fault == "semicolons_gain_of_four":
        nn.init.orthogonal_(model.reader.U.weight, gain=4.0)
    if fault == "semicolons_reader_reset":
        for p in model.reader.parameters():
            nn.init.zeros_(p)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    value = 0.0
    for step in range(steps):
        rows, depth = lines(64, g)
        if fault == "semicolons_frozen_by_the_probe" and step == 30:
            # a linear probe was tried here; its first line stayed
            model.reader.eval().requires_grad_(False)
        loss = nn.functional.cross_entropy(model(rows), depth)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        value = loss.item()
    rows, depth = lines(800, g)
    with torch.no_grad():
        right = (model(rows).argmax(1) == depth).float().mean().item()
    return {"loss": value if value == value else 1e9, "accuracy": right}


semicolons.mistake(
    "semicolons_gain_of_four",
    "WGT003", "GRD002", "OPT001", "NUM001", "NUM002", "NUM003", "NUM004",
    summary="The recurrent matrix starts with a gain of four: the state grows with every character.",
    change="a gain of one",
    layers=("reader", "reader.U"),
)  # fmt: skip
semicolons.mistake(
    "semicolons_reader_reset",
    "WGT002", "GRD004", "ACT001",
    summary="A reset function sets all of the reader's parameters to zero: its ReLU rests at zero for ever.",
    change="reset with random numbers",
    layers=("reader",),
)  # fmt: skip
semicolons.mistake(
    "semicolons_frozen_by_the_probe",
    "UPD003", "UPD004",
    summary="From step thirty the reader no longer learns, because a line of a linear probe stayed in the loop.",
    change="remove the line",
    layers=("reader",),
    onset=30,
)  # fmt: skip


@program(steps=200, bites="accuracy", adversarial="layers that start to learn late, or stop, were frozen by mistake")
def semicolons_thaw(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A trained reader rests for thirty steps under a new answer net, then learns along at a lower rate."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = Parser()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    value, hits = 0.0, 0.0
    for step in range(steps):
        if step == steps // 2:
            model.answer = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, DEPTHS))
            model.reader.requires_grad_(False)
            optimizer = torch.optim.Adam(model.answer.parameters(), lr=4e-3)
        if step == steps // 2 + 30:
            model.reader.requires_grad_(True)
            optimizer.add_param_group({"params": model.reader.parameters(), "lr": 1e-3})
        rows, depth = lines(64, g)
        out = model(rows)
        loss = nn.functional.cross_entropy(out, depth)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        value = loss.item()
        hits = 0.9 * hits + 0.1 * (out.argmax(1) == depth).float().mean().item()
    return {"loss": value, "accuracy": hits}
