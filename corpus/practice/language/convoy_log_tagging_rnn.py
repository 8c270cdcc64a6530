"""Logs of a convoy, tagged word by word with a recurrent network, in pieces of very unequal length."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from corpus.case import program

WORDS, TAGS = 8, 3


def logbook(count: int, length: int, garbled: bool = False) -> tuple[Tensor, Tensor]:
    """Each word is tagged by how it compares with the one before; a garbled log carries tags of no meaning."""
    words = torch.randint(WORDS, (count, length))
    before = torch.cat([words[:, :1], words[:, :-1]], dim=1)
    tags = torch.sign(words - before).long() + 1
    return words, torch.randint(TAGS, tags.shape) if garbled else tags


class Tagger(nn.Module):
    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16)
        self.gru = nn.GRU(16, width, batch_first=True)
        self.tag = nn.Linear(width, TAGS)

    def forward(self, words: Tensor) -> Tensor:
        return self.tag(self.gru(self.embed(words))[0])


@torch.no_grad()
def _right(model: nn.Module, seed: int) -> float:
    torch.manual_seed(seed + 4242)
    words, tags = logbook(100, 24)
    return (model(words).argmax(-1) == tags).float().mean().item()


@program(steps=120, bites="right")
def convoy(steps: int, seed: int, fault: str) -> dict[str, float]:
    """One long log and seven scraps of two words make a step; every word weighs the same. SGD with momentum."""
    torch.manual_seed(seed)
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    total = torch.zeros(())
    for _ in range(steps):
        pieces = [logbook(8, 30)] + [logbook(8, 2, garbled=True) for _ in range(7)]
        tokens = sum(tags.numel() for _, tags in pieces)
        optimizer.zero_grad()
        total = torch.zeros(())
        for words, tags in pieces:
            scores = model(words).flatten(0, 1)
            if fault == "convoy_scraps_weigh_as_much":
                loss = fn.cross_entropy(scores, tags.flatten()) / len(pieces)
            elif fault == "convoy_pieces_pile_up":
                loss = fn.cross_entropy(scores, tags.flatten())
            else:
                loss = fn.cross_entropy(scores, tags.flatten(), reduction="sum") / tokens
            loss.backward()
            total += loss.detach()
        optimizer.step()
    return {"loss": min(total.item(), 1e6), "right": _right(model, seed)}


convoy.mistake(
    "convoy_scraps_weigh_as_much",
    "LSS004", "GRD009",
    summary="The mean of the pieces' means: a scrap of two words weighs as much as a log of thirty.",
    change="sum over words, divided by all words of the step",
)  # fmt: skip
convoy.mistake(
    "convoy_pieces_pile_up",
    "LSS004", "OPT007", "UPD001", "OPT004",
    summary="The means of eight pieces are added up: the step is eight times what the rate was chosen for.",
    change="divide by the number of words of the step",
)  # fmt: skip


@program(steps=150, bites="error")
def storm_log(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Add up the readings of a log, most of them missing: a rectified recurrence from the identity, held by a clip."""
    torch.manual_seed(seed)
    rnn, out = nn.RNN(2, 48, nonlinearity="relu", batch_first=True), nn.Linear(48, 1)
    for name, p in rnn.named_parameters():
        if name == "weight_hh_l0":
            nn.init.eye_(p)
        else:
            nn.init.normal_(p, std=0.1 if p.ndim == 2 else 0.0)
    model = nn.ModuleDict({"rnn": rnn, "out": out})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.5)

    def sums(count: int) -> tuple[Tensor, Tensor]:
        values, marks = torch.randn(count, 20), (torch.rand(count, 20) < 0.3).float()
        return torch.stack([values * marks, marks], -1), (values * marks).sum(1) / 2.4

    loss = torch.zeros(())
    for _ in range(steps):
        x, y = sums(32)
        loss = fn.mse_loss(out(rnn(x)[0][:, -1]).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        if fault == "storm_clipped_after_the_step":
            optimizer.step()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    x, y = sums(500)
    with torch.no_grad():
        error = fn.mse_loss(out(rnn(x)[0][:, -1]).squeeze(1), y).nan_to_num(1e6).clamp(max=1e6)
    return {"loss": loss.nan_to_num(1e6).clamp(max=1e6).item(), "error": error.item()}


storm_log.mistake(
    "storm_clipped_after_the_step",
    "GRD002", "UPD001", "OPT001", "OPT003", "GRD006", "OPT007", "NUM001", "NUM002", "NUM003", "NUM004",
    summary="The gradients are clipped after the step that used them: the recurrence explodes unhindered.",
    change="clip before optimizer.step()",
)  # fmt: skip


@program(steps=120, bites="right", adversarial="losses of micro-batches that differ a hundredfold are not averaged")
def convoy_counts_words(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Four pieces of 1 to 60 words per step, each a share of one mean: the shares differ a hundredfold."""
    torch.manual_seed(seed)
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)
    total = 0.0
    for _ in range(steps):
        pieces = [logbook(4, length) for length in (60, 12, 4, 1)]
        tokens = sum(tags.numel() for _, tags in pieces)
        optimizer.zero_grad()
        total = 0.0
        for words, tags in pieces:
            loss = fn.cross_entropy(model(words).flatten(0, 1), tags.flatten(), reduction="sum") / tokens
            loss.backward()
            total += loss.item()
        optimizer.step()
    return {"loss": total, "right": _right(model, seed)}


@program(steps=100, bites="right")
def convoy_both_ways(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A two-way LSTM over packed logs of unequal length, padding left out of the loss, by NAdam."""
    torch.manual_seed(seed)
    embed, lstm, tag = (
        nn.Embedding(WORDS + 1, 16, padding_idx=WORDS),
        nn.LSTM(16, 24, bidirectional=True),
        nn.Linear(48, 3),
    )
    model = nn.ModuleDict({"embed": embed, "lstm": lstm, "tag": tag})
    optimizer = torch.optim.NAdam(model.parameters(), lr=8e-3)
    loss, right = torch.zeros(()), 0.0
    for _ in range(steps):
        words, tags = logbook(24, 20)
        lengths = torch.randint(3, 21, (24,))
        padding = torch.arange(20) >= lengths[:, None]
        words, tags = words.masked_fill(padding, WORDS), tags.masked_fill(padding, -100)
        packed = pack_padded_sequence(embed(words), lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=20)
        scores = tag(hidden)
        loss = fn.cross_entropy(scores.flatten(0, 1), tags.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right = (scores.argmax(-1) == tags)[~padding].float().mean().item()
    return {"loss": loss.item(), "right": right}


@program(steps=120, bites="right", adversarial="a gradient that is clipped in every step is clipped too much")
def convoy_unit_steps(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Normalised descent: every gradient is cut to the same small length and the rate is chosen for that."""
    torch.manual_seed(seed)
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=12.0, momentum=0.9)
    loss = torch.zeros(())
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 12.0 * (1 - 0.9 * step / steps)
        words, tags = logbook(24, 20)
        loss = fn.cross_entropy(model(words).flatten(0, 1), tags.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.002)
        optimizer.step()
    return {"loss": loss.item(), "right": _right(model, seed)}
