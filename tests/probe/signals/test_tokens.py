"""Tokens beside labels and masks: what may be seen, what is asked for, what is padding."""

from __future__ import annotations

import pytest
import torch
from tests.probe.signals.attention_models import BATCH, FORMS, LENGTH, WIDTH, Attention, Model, one_step, tokens
from torch import nn

from undertow.probe.signals.tokens import Lookup, is_one_of_many


@pytest.mark.parametrize("form", ["built_in", "added_mask", "masked_fill", "added_by_hand"])
@pytest.mark.parametrize("inverted", [False, True])
def test_a_mask_that_leaves_padding_only(watch, form, inverted, monkeypatch):
    padding = torch.arange(LENGTH)[None, :] >= torch.tensor([6, 5, 4])[:, None]
    mask = (~padding if inverted else padding)[:, None, None, :].expand(BATCH, 1, LENGTH, LENGTH)
    monkeypatch.setattr("tests.probe.signals.attention_models.hidden", lambda _: mask)
    padded = (tokens() % 10 + 1).masked_fill(padding, 0)
    run = one_step(watch, Model(Attention(form, "padding")), padded, tokens())
    assert run.series("attention_state", "attention")[0] == (2.0 if inverted else 0.0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_places_that_see_what_they_are_asked_for(watch, form, mask):
    text = torch.randint(0, 11, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(3))
    run = one_step(watch, Model(Attention(form, mask)), text[:, :-1], text[:, 1:])
    assert run.series("attention_state", "attention")[0] == (4.0 if mask == "none" else 0.0)


def test_a_source_may_be_seen_as_a_whole(watch):
    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source, self.target, self.head = nn.Embedding(11, WIDTH), nn.Embedding(11, WIDTH), nn.Linear(WIDTH, 11)
            self.read, self.cross = nn.MultiheadAttention(WIDTH, 2, batch_first=True), Attention("built_in", "causal")

        def forward(self, both: torch.Tensor) -> torch.Tensor:
            source, target = self.source(both[:, 0]), self.target(both[:, 1])
            return self.head(target + self.read(target, source, source)[0] + self.cross(target))

    text = torch.randint(0, 11, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(3))
    run = one_step(watch, Translator(), torch.stack([tokens(), text[:, :-1]], 1), text[:, 1:])
    assert not (run.matrix("attention_state") > 0).any()


# -- tokens ----------------------------------------------------------------------------------------------------


class Language(nn.Module):
    def __init__(self, padding: int | None = None, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(11, WIDTH, padding_idx=padding), kind(WIDTH, WIDTH, batch_first=True)
        self.positions, self.head = nn.Embedding(LENGTH, WIDTH), nn.Linear(WIDTH, 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1]).expand(x.shape)
        return self.head(self.rnn(self.embed(x) + self.positions(places))[0])


def test_targets_that_are_the_inputs(watch):
    for kind, found in ((nn.LSTM, 1.0), (nn.GRU, 0.5)):  # the steps of a GRU are operations of their own
        run = one_step(watch, Language(kind=kind), tokens(), tokens())
        assert run.scalars("targets_are_inputs").tolist() == [found]
        run = one_step(watch, Language(kind=kind), tokens()[:, :-1], tokens()[:, 1:])
        assert run.scalars("targets_are_inputs").tolist() == [0.0]
    run = one_step(watch, Language(), tokens()[:, 1:], tokens()[:, :-1])
    assert run.scalars("targets_are_inputs").tolist() == [2.0]  # shifted the wrong way
    late = torch.cat([torch.zeros_like(tokens()[:, :1]), tokens()[:, :-1]], 1)
    run = one_step(watch, Language(), tokens(), late)
    assert run.scalars("targets_are_inputs").tolist() == [0.0]  # an echo: the first place has nothing to say


def test_a_code_of_the_whole_sequence(watch):
    class Coder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.encoder = nn.Embedding(11, WIDTH), nn.LSTM(WIDTH, WIDTH, batch_first=True)
            self.decoder, self.head = nn.LSTM(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, 11)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            code = self.encoder(self.embed(x))[0][:, -1]
            return self.head(self.decoder(code[:, None].expand(-1, x.shape[1], -1))[0])

    run = one_step(watch, Coder(), tokens(), tokens())
    assert run.scalars("targets_are_inputs").tolist() == [0.5]


def test_a_decoder_that_is_taught_by_its_targets_copies_on_purpose(watch):
    class Copier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source, self.target, self.head = Language(), Language(), nn.Linear(11, 11)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            late = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
            return self.head(self.source(x).mean(1, keepdim=True) + self.target(late))

    run = one_step(watch, Copier(), tokens(), tokens())
    assert run.scalars("targets_are_inputs").tolist() == [0.0]


def test_a_token_of_the_text_as_padding(watch):
    text = tokens()
    run = one_step(watch, Language(int(text[0, 2])), text[:, :-1], text[:, 1:])
    inside = (text[:, :-1] == text[0, 2])[:, 1:-1].float().sum() / text[:, :-1].numel()
    assert run.series("padding_inside", "embed")[0] == pytest.approx(float(inside))
    assert inside > 0
    ends = text.masked_fill(text == 0, 1)
    ends[:, -2:] = 0
    run = one_step(watch, Language(0), ends[:, :-1], ends[:, 1:])
    assert run.series("padding_inside", "embed").tolist() == [0.0]


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("a token", True),
        ("at the end", False),
        ("mostly empty", False),
        ("columns", False),
        ("the commonest token", True),
        ("two parts", False),
    ],
)
def test_padding_that_stands_wherever_others_do(kind, found):
    draw = torch.Generator().manual_seed(0)
    text = torch.randint(6, (32, 10), generator=draw)
    if kind == "at the end":
        lengths = torch.randint(5, 10, (32, 1), generator=draw)
        text = (text % 5 + 1).masked_fill(torch.arange(10) >= lengths, 0)
    elif kind == "mostly empty":
        text = text.masked_fill(torch.rand(32, 10, generator=draw) < 0.6, 0)
    elif kind == "columns":  # every place has values of its own, or none
        text = (text + 6 * torch.arange(10)).masked_fill(text == 0, 0)
    elif kind == "the commonest token":
        text = torch.randint(1, 40, (32, 10), generator=draw).masked_fill(torch.rand(32, 10, generator=draw) < 0.3, 0)
        assert not is_one_of_many(Lookup(None, text, 0, 100))  # where tokens are hidden to be guessed
    elif kind == "two parts":  # a question and an answer, each padded for itself
        lengths = torch.randint(1, 6, (2, 32, 1), generator=draw)
        text = (text % 5 + 1).masked_fill(torch.cat([torch.arange(5) >= one for one in lengths], 1), 0)
    assert is_one_of_many(Lookup(None, text, 0, 100), may_be_common=True) is found
