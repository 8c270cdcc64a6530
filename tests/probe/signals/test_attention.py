"""Attention and gates as the graph shows them, against the same numbers computed by hand from all of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.probe.signals.attention_models import BATCH, FORMS, HEADS, LENGTH, WIDTH, Attention, Model, one_step, tokens
from torch import nn
from torch.nn import functional as F  # noqa: N812


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mask", ["none", "causal", "padding"])
def test_attention(watch, form, mask):
    model = Model(Attention(form, mask))
    run = one_step(watch, model, tokens(), tokens())
    largest, entropy = model.attention.book
    assert run.series("attention_logit_max", "attention")[0] == pytest.approx(largest, rel=1e-4)
    assert run.series("attention_entropy", "attention")[0] == pytest.approx(entropy, rel=1e-3)
    for other in ("", "norm", "head", "embed", "attention.softmax", "attention.qkv"):
        if other in run.layers:
            assert np.isnan(run.series("attention_entropy", other)).all()


@pytest.mark.parametrize("form", FORMS)
def test_collapsed_attention(watch, form):
    model = Model(Attention(form, "causal", sharpness=30.0))
    run = one_step(watch, model, tokens(), tokens())
    assert run.series("attention_logit_max", "attention")[0] == pytest.approx(model.attention.book[0], rel=1e-4)
    assert run.series("attention_logit_max", "attention")[0] > 100
    assert run.series("attention_entropy", "attention")[0] == pytest.approx(model.attention.book[1], abs=1e-3)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_of_torchs_own_layers(watch, dropout):
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(11, WIDTH), nn.Linear(WIDTH, 11)
            self.block = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=dropout, batch_first=True)
            self.plain = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.block(self.embed(x))
            return self.head(self.plain(h, h, h)[0])

    run = one_step(watch, Encoder(), tokens(), tokens())
    for name in ("block.self_attn", "plain"):
        assert 0.5 < run.series("attention_entropy", name)[0] <= 1.0
        assert 0.0 < run.series("attention_logit_max", name)[0] < 20.0


class Normalised(nn.Module):
    """Attention by hand whose softmax can be taken over the wrong dimension."""

    def __init__(self, dimension: int, again: bool = False) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dimension, self.again = dimension, again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = (3 * self.query(x) @ self.key(x).transpose(1, 2)).softmax(self.dimension)
        return (weights / weights.sum(-1, keepdim=True) if self.again else weights) @ x


@pytest.mark.parametrize(("dimension", "again", "state"), [(-1, False, 0.0), (1, False, 1.0), (1, True, math.nan)])
def test_weights_that_sum_to_one_over_the_queries(watch, dimension, again, state):
    run = one_step(watch, Model(Normalised(dimension, again)), tokens(), tokens())
    assert run.series("attention_state", "attention")[0] == pytest.approx(state, nan_ok=True)


class Dropped(Normalised):
    """The same, with dropout on its weights."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = (3 * self.query(x) @ self.key(x).transpose(1, 2)).softmax(self.dimension)
        return F.dropout(weights, 0.3) @ x


@pytest.mark.parametrize(("dimension", "state"), [(-1, 0.0), (1, 1.0)])
def test_weights_that_are_dropped_before_they_are_used(watch, dimension, state):
    run = one_step(watch, Model(Dropped(dimension)), tokens(), tokens())
    assert run.series("attention_state", "attention")[0] == state


class Plain(nn.Module):
    """Attention by hand, with or without the division by the root of the width, and with larger or usual weights."""

    def __init__(self, divided: bool, gain: float) -> None:
        super().__init__()
        self.query, self.key, self.divided = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), divided
        nn.init.orthogonal_(self.query.weight, gain)
        nn.init.orthogonal_(self.key.weight, gain)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = self.query(x) / math.sqrt(WIDTH) if self.divided else self.query(x)
        return (query @ self.key(x).transpose(1, 2)).softmax(-1) @ x


@pytest.mark.parametrize(("divided", "gain", "state"), [(False, 1.5, 3.0), (False, 0.3, 0.0), (True, 3.0, 0.0)])
def test_logits_that_nothing_divides(watch, divided, gain, state):
    run = one_step(watch, Model(Plain(divided, gain)), tokens(), tokens())
    assert run.series("attention_state", "attention")[0] == state


def test_attention_in_the_model_itself_is_told_of_its_part_before(watch):
    run = one_step(watch, nn.Sequential(nn.Embedding(11, WIDTH), Whole(1)), tokens(), tokens())
    assert run.series("attention_state", "1")[0] == 1.0
    run = one_step(watch, Whole(1, nn.Embedding(11, WIDTH)), tokens(), tokens())
    assert run.series("attention_state", "key")[0] == 1.0


class Whole(Normalised):
    def __init__(self, dimension: int, embed: nn.Module | None = None) -> None:
        super().__init__(dimension)
        self.embed, self.head = embed or nn.Identity(), nn.Linear(WIDTH, 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(super().forward(self.embed(x)))


def test_a_soft_assignment_to_clusters_is_no_attention(watch):
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.assign = nn.Linear(WIDTH, LENGTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            shares = self.assign(x).softmax(-1)  # of each node over the clusters
            return shares @ (shares.transpose(1, 2) @ x)

    run = one_step(watch, Model(Pooled()), tokens(), tokens())
    assert not (run.matrix("attention_state") > 0).any()


def test_a_softmax_over_classes_is_no_attention(watch):
    class Pixels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 11)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x)).softmax(-1)

    run = one_step(watch, Pixels(), torch.randn(BATCH, LENGTH, WIDTH), tokens())
    assert np.isnan(run.matrix("attention_entropy")).all()
    assert np.isnan(run.matrix("router_outputs")).all()


# -- gates -----------------------------------------------------------------------------------------------------
