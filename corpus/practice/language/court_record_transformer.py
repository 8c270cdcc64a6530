"""Court records by subject: a small transformer over words, as one finds it in a law student's repository."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from corpus.case import program

WORDS, LENGTH, SUBJECTS = 48, 14, 5
STOP = 1  # ends every clause, and in three subjects the number of clauses is what tells


def records(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Words of the subject among many others; subjects 3 and 4 differ from 0 and 1 in the number of full stops."""
    g = torch.Generator().manual_seed(seed + 400)
    subject = torch.randint(SUBJECTS, (n,), generator=g)
    words = torch.randint(2, WORDS, (n, LENGTH), generator=g)
    theme = 2 + 6 * (subject % 3)[:, None] + torch.randint(6, (n, LENGTH), generator=g)
    words = torch.where(torch.rand(n, LENGTH, generator=g) < 0.35, theme, words)
    stops = torch.where(subject >= 3, 0.35, 0.03)[:, None]
    return torch.where(torch.rand(n, LENGTH, generator=g) < stops, STOP, words), subject


class Clerk(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, args.width, padding_idx=STOP if args.stop_is_padding else 0)
        self.position = nn.Parameter(0.02 * torch.randn(LENGTH, args.width))
        layer = nn.TransformerEncoderLayer(args.width, 4, 2 * args.width, args.dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.subject = nn.Sequential(nn.Linear(args.width, SUBJECTS))
        for activation in args.after_the_head:
            self.subject.append(activation)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.subject(self.encoder(self.words(tokens) + self.position).mean(1))


def settings(after_the_head: Sequence[nn.Module] = (), **changed: float) -> argparse.Namespace:
    defaults = {"width": 32, "dropout": 0.1, "lr": 1e-3, "stop_is_padding": False, "records": 1200, "batch": 32}
    return argparse.Namespace(after_the_head=after_the_head, **{**defaults, **changed})


def held_out(model: Clerk, seed: int) -> dict[str, float]:
    tokens, subject = records(500, seed + 7)
    model.eval()
    with torch.no_grad():
        scores = model(tokens)
    loss = nn.functional.cross_entropy(scores, subject).item()
    accuracy = (scores.argmax(1) == subject).float().mean().item()
    return {"held_out_loss": loss if math.isfinite(loss) else 1e9, "accuracy": accuracy}


@program(steps=180, bites="accuracy")
def courtroom(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two encoder layers, AdamW, a linear warm-up over twenty steps."""
    torch.manual_seed(seed)
    after: list[nn.Module] = []
    if fault == "court_softmax_at_the_end":
        after = [nn.Softmax(dim=-1)]
    elif fault == "court_rectified_subjects":
        after = [nn.ReLU()]
    args = settings(after, stop_is_padding=fault == "court_stop_is_padding")
    tokens, subject = records(args.records, seed)
    model = Clerk(args)
    if fault == "court_rectified_subjects":
        nn.init.constant_(model.subject[0].bias, -2.0)  # pyright: ignore[reportArgumentType]
    row = model.words.weight[STOP].detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
    criterion = nn.NLLLoss() if fault == "court_likelihood_of_raw_scores" else nn.CrossEntropyLoss()
    value = math.nan
    for _ in range(steps):
        if fault == "court_seeded_in_the_loop":
            torch.manual_seed(seed)
        rows = torch.randint(args.records, (args.batch,))
        loss = criterion(model(tokens[rows]), subject[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warm.step()
        value = loss.item()
    moved = (model.words.weight[STOP].detach() - row).norm().item()
    return {"loss": value if math.isfinite(value) else 1e9, "row_moved": moved, **held_out(model, seed)}


courtroom.mistake(
    "court_softmax_at_the_end", "LSS001",
    summary="The head ends in a softmax, and cross-entropy takes it for scores.",
    change="remove the softmax",
    layers=("subject",),
    bites="held_out_loss",
)  # fmt: skip
courtroom.mistake(
    "court_likelihood_of_raw_scores", "LSS001", "LSS003",
    summary="NLLLoss gets raw scores instead of log-probabilities: the loss falls below zero without end.",
    change="log_softmax, or cross-entropy",
    bites="held_out_loss",
)  # fmt: skip
courtroom.mistake(
    "court_rectified_subjects", "ACT001", "GRD004",
    summary="A ReLU after the last layer, whose bias starts at -2: all scores are zero from the start.",
    change="remove the ReLU",
    layers=("subject",),
)  # fmt: skip
courtroom.mistake(
    "court_stop_is_padding", "GRD004", "UPD003",
    summary="padding_idx is the full stop, a word that tells: its row of the table is zero and never learns.",
    change="the index of the padding",
    layers=("words",),
    bites="row_moved", silent=True,
)  # fmt: skip
courtroom.mistake(
    "court_seeded_in_the_loop", "DAT005", "OPT006",
    summary="The seed is set within the loop: every step gets the same 32 records.",
    change="set the seed once",
)  # fmt: skip


@program(steps=200, bites="held_out_loss")
def few_records(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A hundred records only, and therefore a dropout of one half; now and then it prints an example."""
    torch.manual_seed(seed)
    args = settings(dropout=0.5, records=100, lr=2e-3)
    tokens, subject = records(args.records, seed)
    model = Clerk(args)
    if fault == "few_records_asleep":
        model.eval()  # "so that runs can be compared"
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    value = math.nan
    for step in range(steps):
        rows = torch.randint(args.records, (args.batch,))
        loss = nn.functional.cross_entropy(model(tokens[rows]), subject[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        if step % 50 == 49 and fault != "few_records_asleep":
            model.eval()
            with torch.no_grad():
                model(tokens[:1]).argmax()
            if fault != "few_records_asleep_after_an_example":
                model.train()
    with torch.no_grad():  # what dropout does in the mode that the loop trains in
        noise = (model(tokens) - model(tokens)).abs().mean().item()
    return {"loss": value, "noise": noise, **held_out(model, seed)}


few_records.mistake(
    "few_records_asleep", "MOD001",
    summary="eval() before the loop, so that runs can be compared: no dropout, and a hundred records by heart.",
    change="train() before the loop",
    layers=("encoder",),
    bites="noise", silent=True,
)  # fmt: skip
few_records.mistake(
    "few_records_asleep_after_an_example", "MOD001",
    summary="The example printed at step 50 leaves the model in eval mode: dropout is off from there on.",
    change="train() after the example",
    layers=("encoder",), onset=50,
    bites="noise", silent=True,
)  # fmt: skip
