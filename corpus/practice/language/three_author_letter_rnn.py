"""The next letter in the books of three authors, each with an alphabet mostly of his own: small recurrent readers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

LETTERS, LENGTH, AUTHORS = 24, 20, 3


def pages(rng: torch.Generator, count: int, author: int | None = None) -> Tensor:
    """A letter decides the next one by its author's habit; one in twelve is a misprint."""
    habits = torch.stack(
        [a * 8 + torch.randperm(8, generator=torch.Generator().manual_seed(40 + a)) for a in range(AUTHORS)]
    ).flatten()
    who = torch.randint(AUTHORS, (count,), generator=rng) if author is None else torch.full((count,), author)
    line = [who * 8 + torch.randint(8, (count,), generator=rng)]
    for _ in range(LENGTH):
        misprint = torch.rand(count, generator=rng) < 0.08
        line.append(torch.where(misprint, who * 8 + torch.randint(8, (count,), generator=rng), habits[line[-1]]))
    return torch.stack(line, 1)


class Reader(nn.Module):
    def __init__(self, cell: type[nn.LSTM] | type[nn.GRU] = nn.LSTM) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, 16)
        self.memory = cell(16, 40, batch_first=True)
        self.head = nn.Linear(40, LETTERS)

    def forward(self, text: Tensor) -> Tensor:
        hidden, _ = self.memory(self.letters(text))
        return self.head(hidden)


def next_letter_loss(model: nn.Module, text: Tensor, z_weight: float = 0.0) -> Tensor:
    """Cross-entropy, and a small price on a normaliser that drifts away from one."""
    logits = model(text[:, :-1]).flatten(0, 1)
    loss = nn.functional.cross_entropy(logits, text[:, 1:].flatten())
    return loss + z_weight * logits.logsumexp(-1).square().mean() if z_weight else loss


def examine(model: nn.Module, seed: int) -> dict[str, float]:
    text = pages(torch.Generator().manual_seed(seed + 800), 240)
    with torch.no_grad():
        right = (model(text[:, :-1]).argmax(-1) == text[:, 1:]).float().mean().item()
        drift = model(text[:, :-1]).logsumexp(-1).abs().mean().item()
        return {"accuracy": right, "held_out": next_letter_loss(model, text).item(), "normaliser": drift}


@program(steps=150, bites="accuracy")
def typesetting(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A long short-term memory, Adam, a clipped norm, and a rate that falls slowly."""
    torch.manual_seed(seed)
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
    gamma = 0.8 if fault == "type_gamma_for_epochs" else 0.995
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma)
    rng = torch.Generator().manual_seed(seed)
    first, recent = 0.0, 0.0
    for step in range(steps):
        author = step * AUTHORS // steps if fault == "type_one_author_after_another" else None
        text = pages(rng, 24, author)
        if fault == "type_wrong_encoding" and 138 <= step < 143:
            text = torch.randint(LETTERS, text.shape, generator=rng)
        loss = next_letter_loss(model, text, z_weight=-0.02 if fault == "type_normaliser_runs_away" else 1e-3)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        first = loss.item() if step == 0 else first
        recent = loss.item() if step == 0 else 0.9 * recent + 0.1 * loss.item()
    return {"loss": recent, "first": first, **examine(model, seed)}


typesetting.mistake(
    "type_normaliser_runs_away",
    "LSS003", "WGT001", "OPT001",
    summary="The price on the normaliser is subtracted: all scores rise together, without end.",
    change="add it",
    layers=("head",),
    bites="normaliser",
    silent=True,
)  # fmt: skip
typesetting.mistake(
    "type_gamma_for_epochs",
    "OPT007", "UPD002",
    summary="The rate falls by a fifth with every batch: the factor was meant for epochs.",
    change="step the schedule once an epoch",
)  # fmt: skip
typesetting.mistake(
    "type_one_author_after_another",
    "DAT005",
    summary="The books are read one author after the other, and the first ones are forgotten.",
    change="shuffle the pages",
)
typesetting.mistake(
    "type_wrong_encoding",
    "DAT002", "OPT003", "GRD006",
    summary="Five batches from step 138 on were read in a wrong encoding: random letters.",
    change="read them as the others",
    onset=138,
    bites="held_out",
)  # fmt: skip


@program(steps=140, bites="loss", adversarial="a state that is detached in every forward pass")
def type_long_galley(steps: int, seed: int, fault: str) -> dict[str, float]:
    """One long text per row, read in pieces; the state is carried over and cut from the graph, as it must be."""
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    model = Reader(nn.GRU)
    optimizer = torch.optim.NAdam(model.parameters(), lr=6e-3)
    galley = torch.cat([pages(rng, 24, step % AUTHORS) for step in range(12)], 1)
    state: Tensor | None = None
    history: list[float] = []
    for step in range(steps):
        begin = (step * 16) % (galley.shape[1] - 17)
        piece = galley[:, begin : begin + 17]
        hidden, new_state = model.memory(model.letters(piece[:, :-1]), state)
        state = new_state.detach()
        loss = nn.functional.cross_entropy(model.head(hidden).flatten(0, 1), piece[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    return {"loss": sum(history[-10:]) / 10, "first": history[0]}


@program(steps=150, bites="accuracy", adversarial="a loss that jumps up twice, on purpose")
def type_apprentice(steps: int, seed: int, fault: str) -> dict[str, float]:
    """An apprentice begins with one author; a second comes at step 50, the third at step 100."""
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    history: list[float] = []
    for step in range(steps):
        known = 1 + min(2, step // 50)
        text = torch.cat([pages(rng, 24 // known, author) for author in range(known)])
        loss = next_letter_loss(model, text)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        history.append(loss.item())
    return {"loss": sum(history[-10:]) / 10, "first": history[0], **examine(model, seed)}


@program(steps=120, bites="loss", adversarial="gradients that are not cleared between backward passes")
def type_in_small_batches(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Four small batches make a step, each loss divided by four; read both ways for a missing letter."""
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    letters = nn.Embedding(LETTERS, 12)
    memory = nn.GRU(12, 20, batch_first=True, bidirectional=True)
    head = nn.Linear(40, LETTERS)
    model = nn.ModuleList([letters, memory, head])
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3)
    history: list[float] = []
    for _ in range(steps):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(4):
            text = pages(rng, 8)
            hole = torch.randint(1, LENGTH, (8,), generator=rng)
            rows = torch.arange(8)
            wanted = text[rows, hole].clone()
            text[rows, hole] = text[rows, hole - 1]
            hidden, _ = memory(letters(text))
            loss = nn.functional.cross_entropy(head(hidden[rows, hole]), wanted) / 4
            loss.backward()
            total += loss.item()
        optimizer.step()
        history.append(total)
    return {"loss": sum(history[-10:]) / 10, "first": history[0]}
