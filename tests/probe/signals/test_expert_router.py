"""Gates: how many rows the busiest expert is given."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.probe.signals.attention_models import BATCH, LENGTH, WIDTH, one_step
from torch import nn


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
