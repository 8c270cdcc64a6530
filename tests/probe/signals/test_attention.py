"""Attention and gates as the graph shows them, against the same numbers computed by hand from all of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from undertow.probe.signals.tokens import Lookup, is_one_of_many

BATCH, LENGTH, WIDTH, HEADS = 3, 7, 16, 2
PADDING = torch.tensor([7, 5, 4])


def hidden(mask: str) -> torch.Tensor:
    """(batch × 1 × length × length), True where attention must not go."""
    out = torch.zeros(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool)
    if mask == "causal":
        out |= torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    elif mask == "padding":
        out |= (torch.arange(LENGTH)[None, :] >= PADDING[:, None])[:, None, None, :]
    return out


class Attention(nn.Module):
    """Keeps its own book: the largest logit and the mean entropy, in float64."""

    def __init__(self, form: str, mask: str = "none", sharpness: float = 1.0) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.softmax = nn.Softmax(-1)
        self.form, self.mask, self.sharpness = form, mask, sharpness
        self.book: tuple[float, float] = (0.0, 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.view(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for part in (self.sharpness * self.qkv(x)).chunk(3, -1)
        )
        self.note(q, k)
        out = getattr(self, self.form)(q, k, v, hidden(self.mask))
        return self.out(out.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))

    def note(self, q: torch.Tensor, k: torch.Tensor) -> None:
        logits = (q.detach().double() @ k.detach().double().transpose(-1, -2)) / math.sqrt(WIDTH // HEADS)
        mask = hidden(self.mask).expand(logits.shape)
        shares = logits.masked_fill(mask, -math.inf).softmax(-1)
        entropy = -(shares * shares.clamp_min(1e-300).log()).sum(-1)
        count = (~mask).sum(-1)
        share = (entropy / count.clamp_min(2).double().log())[count > 1].mean()
        self.book = (float(logits.abs().masked_fill(mask, 0).max()), float(share))

    def built_in(self, q, k, v, mask):
        if self.mask == "causal":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=~mask if self.mask != "none" else None)

    def added_mask(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.zeros(mask.shape).masked_fill(mask, -math.inf))

    def masked_fill(self, q, k, v, mask):
        logits = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        return logits.masked_fill(mask, -math.inf).softmax(-1) @ v

    def added_by_hand(self, q, k, v, mask):
        logits = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        return self.softmax(logits + torch.zeros(mask.shape).masked_fill(mask, -math.inf)) @ v

    def dropped(self, q, k, v, mask):
        logits = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        return F.dropout(logits.masked_fill(mask, -math.inf).softmax(-1), 0.1) @ v

    def by_einsum(self, q, k, v, mask):
        logits = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
        return torch.einsum("bhqk,bhkd->bhqd", logits.masked_fill(mask, -math.inf).softmax(-1), v)


class Model(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.embed, self.attention = nn.Embedding(11, WIDTH), attention
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 11)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        return self.head(x + self.attention(self.norm(x)))


def one_step(watch, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watch(model, activations=True) as w:
        output = model(inputs)
        F.cross_entropy(output.reshape(-1, output.shape[-1]), targets.reshape(-1)).backward()
        optimizer.step()
    return w.run


def tokens() -> torch.Tensor:
    return torch.randint(0, 11, (BATCH, LENGTH), generator=torch.Generator().manual_seed(3))


FORMS = ("built_in", "added_mask", "masked_fill", "added_by_hand", "dropped", "by_einsum")


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


@pytest.mark.parametrize("form", ["built_in", "added_mask", "masked_fill", "added_by_hand"])
@pytest.mark.parametrize("inverted", [False, True])
def test_a_mask_that_leaves_padding_only(watch, form, inverted, monkeypatch):
    padding = torch.arange(LENGTH)[None, :] >= torch.tensor([6, 5, 4])[:, None]
    mask = (~padding if inverted else padding)[:, None, None, :].expand(BATCH, 1, LENGTH, LENGTH)
    monkeypatch.setattr("tests.probe.signals.test_attention.hidden", lambda _: mask)
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


class Mixture(nn.Module):
    def __init__(self, form: str, bias: float = 0.0, experts: int = 4) -> None:
        super().__init__()
        self.router, self.head = nn.Linear(WIDTH, experts), nn.Linear(WIDTH, 5)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(experts))
        with torch.no_grad():
            self.router.bias[1] += bias
        self.form = form
        self.load = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.router(x)
        self.load = float(torch.bincount(logits.argmax(-1).flatten()).max() / logits[..., 0].numel())
        if self.form in ("two_of_all", "softmax_of_two", "masked_two"):
            others = torch.bincount(logits.topk(2, -1).indices.flatten(), minlength=4).sort().values[:-2].sum()
            self.load = max(self.load, 1 - float(others) / len(logits))
        return self.head(getattr(self, self.form)(x, logits))

    def dense(self, x, logits):
        return (torch.stack([expert(x) for expert in self.experts], -2) * logits.softmax(-1).unsqueeze(-1)).sum(-2)

    def einsum(self, x, logits):
        return torch.einsum("be,bed->bd", logits.softmax(-1), torch.stack([expert(x) for expert in self.experts], 1))

    def switch(self, x, logits):
        weight, choice = logits.softmax(-1).max(-1)
        out = x.new_zeros(len(x), WIDTH)
        for place, expert in enumerate(self.experts):
            picked = choice == place
            if picked.any():
                out[picked] = expert(x[picked]) * weight[picked, None]
        return out

    def two_of_all(self, x, logits):
        weight, choice = logits.softmax(-1).topk(2, -1)
        return self.combine(x, weight / weight.sum(-1, keepdim=True), choice)

    def masked_two(self, x, logits):
        weight, choice = logits.softmax(-1).topk(2, -1)
        out = x.new_zeros(len(x), WIDTH)
        for place, expert in enumerate(self.experts):
            share = (weight * (choice == place)).sum(-1, keepdim=True)
            picked = share.squeeze(-1) > 0
            if picked.any():
                out[picked] = out[picked] + share[picked] * expert(x[picked])
        return out

    def softmax_of_two(self, x, logits):
        weight, choice = logits.topk(2, -1)
        return self.combine(x, weight.softmax(-1), choice)

    def noisy(self, x, logits):
        return self.dense(x, logits + torch.zeros(logits.shape))

    def combine(self, x, weight, choice):
        out = x.new_zeros(len(x), WIDTH)
        for place, expert in enumerate(self.experts):
            rows, which = (choice == place).nonzero(as_tuple=True)
            if len(rows):
                out = out.index_add(0, rows, weight[rows, which, None] * expert(x[rows]))
        return out


@pytest.mark.parametrize("form", ["dense", "einsum", "switch", "two_of_all", "softmax_of_two", "masked_two", "noisy"])
@pytest.mark.parametrize("bias", [0.0, 6.0])
def test_gates(watch, form, bias):
    model = Mixture(form, bias)
    x = torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(1))
    run = one_step(watch, model, x, torch.arange(40) % 5)
    assert run.series("router_outputs", "router").tolist() == [4.0]
    assert run.series("router_load_max", "router")[0] == pytest.approx(model.load)
    assert (model.load == 1.0) == (bias > 0)
    assert np.isnan(run.matrix("attention_entropy")).all()


@pytest.mark.parametrize("form", ["two_of_all", "softmax_of_two", "masked_two"])
def test_the_same_two_are_always_chosen(watch, form):
    model = Mixture(form)
    with torch.no_grad():
        model.router.bias[:2] += 8.0
    x = torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(1))
    run = one_step(watch, model, x, torch.arange(40) % 5)
    assert run.series("router_load_max", "router").tolist() == [1.0]


def test_an_expectation_is_no_gate(watch):
    class Expected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.atoms, self.head = nn.Linear(WIDTH, 7), nn.Linear(WIDTH, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            value = (self.atoms(x).softmax(-1) * torch.arange(7)).sum(-1, keepdim=True)
            return value * self.head(x)

    run = one_step(watch, Expected(), torch.randn(20, WIDTH), torch.arange(20) % 5)
    assert np.isnan(run.matrix("router_outputs")).all()


def test_gates_of_tokens(watch):
    model = Mixture("dense")
    x = torch.randn(BATCH, LENGTH, WIDTH)
    run = one_step(watch, model, x, torch.randint(0, 5, (BATCH, LENGTH)))
    assert run.series("router_load_max", "router")[0] == pytest.approx(model.load)


def test_weighing_features_is_no_gate(watch):
    class Weighed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weigh, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.weigh(x)
            return self.head(h.tanh() * h.softmax(-1))

    run = one_step(watch, Weighed(), torch.randn(20, WIDTH), torch.arange(20) % 5)
    assert np.isnan(run.matrix("router_outputs")).all()
