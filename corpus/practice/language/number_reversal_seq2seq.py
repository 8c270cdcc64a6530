"""Write a number's digits in the other order: recurrent encoder and decoder with attention between them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

DIGITS, LENGTH, START, HIDDEN = 10, 5, 10, 48


def numbers(n: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    source = torch.randint(DIGITS, (n, LENGTH), generator=generator)
    return source, source.flip(1)


class Attend(nn.Module):
    """Additive attention of one query over the encoder's states."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.score = nn.Linear(HIDDEN, 1, bias=False)

    def forward(self, state: Tensor, memory: Tensor) -> Tensor:
        energy = self.score(torch.tanh(self.query(state)[:, None] + self.key(memory)))
        return (energy.softmax(1) * memory).sum(1)


class Reverser(nn.Module):
    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.embed = nn.Embedding(DIGITS + 1, 24)
        self.encoder = nn.GRU(24, HIDDEN, batch_first=True)
        self.attend = Attend()
        self.cell = nn.GRUCell(24 + HIDDEN, HIDDEN)
        self.drop = nn.Dropout(dropout)
        self.out = nn.Linear(2 * HIDDEN, DIGITS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, last = self.encoder(self.drop(self.embed(source)))
        state, given = last[0], torch.full((len(source),), START)
        outputs = []
        for t in range(LENGTH):
            context = self.attend(state, memory)
            state = self.cell(torch.cat([self.embed(given), context], 1), state)
            outputs.append(self.out(self.drop(torch.cat([state, context], 1))))
            given = target[:, t]
        return torch.stack(outputs, 1)


def digit_accuracy(model: Reverser, seed: int) -> float:
    source, target = numbers(300, torch.Generator().manual_seed(seed + 5000))
    model.eval()
    with torch.no_grad():
        return (model(source, target).argmax(-1) == target).float().mean().item()


def token_loss(scores: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())


@program(steps=120, bites="accuracy")
def number_reverser(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Teacher forcing, Adam, halved once in a while."""
    torch.manual_seed(seed)
    # Where this came from, the argument was the share to keep.
    model = Reverser(dropout=0.9 if fault == "share_to_keep" else 0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.15 if fault == "rate_of_the_last_layer" else 8e-3)
    every = 2 if fault == "epochs_counted_in_batches" else 80
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=every, gamma=0.5)
    first = numbers(64)
    for _ in range(steps):
        source, target = numbers(64)
        if fault == "first_batch_again":
            source, target = first  # next(iter(loader)) without shuffling
        loss = token_loss(model(source, target), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return {"accuracy": digit_accuracy(model, seed)}


number_reverser.mistake(
    "share_to_keep",
    "MOD002", "MOD001", "GRD008",
    summary="Dropout of 0.9: the share to drop was taken for the share to keep.",
    change="dropout of 0.1",
    layers=("drop",),
)  # fmt: skip
number_reverser.mistake(
    "epochs_counted_in_batches",
    "OPT007", "UPD002", "OPT002",
    summary="The rate is halved every second batch; it was to be every second epoch.",
    change="step the schedule once in an epoch",
)  # fmt: skip
number_reverser.mistake(
    "rate_of_the_last_layer",
    "OPT007", "UPD001", "OPT001", "OPT004", "OPT003",
    summary="A rate of 0.15, found good for the last layer alone, for the whole network.",
    change="a rate of 8e-3",
)  # fmt: skip
number_reverser.mistake(
    "first_batch_again",
    "DAT005", "OPT006",
    summary="next(iter(loader)) gives the first batch in every step.",
    change="iterate over the loader",
)  # fmt: skip


@program(steps=120, bites="accuracy", adversarial="a loss that rises for a while has diverged")
def reverser_weaned(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Scheduled sampling: after the middle the decoder lives more and more on its own output."""
    torch.manual_seed(seed)
    model = Reverser()
    optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
    for step in range(steps):
        source, target = numbers(64)
        given = target
        share = max(0.0, step / steps - 0.5)
        if share:
            with torch.no_grad():
                own = model(source, target).argmax(-1)
            given = torch.where(torch.rand(target.shape) < share, own, target)
        loss = token_loss(model(source, given), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return {"accuracy": digit_accuracy(model, seed)}


@program(steps=120, bites="accuracy")
def reverser_nadam(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """NAdam and a rate that is lowered when the loss stops falling."""
    torch.manual_seed(seed)
    model = Reverser(dropout=0.0)
    optimizer = torch.optim.NAdam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=15, factor=0.5)
    for _ in range(steps):
        source, target = numbers(64)
        loss = token_loss(model(source, target), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step(loss.item())
    return {"accuracy": digit_accuracy(model, seed)}
