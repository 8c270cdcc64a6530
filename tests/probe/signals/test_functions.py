"""Activation functions without a module of their own: seen with the layer they follow, and only there."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


def step(model: nn.Module, x: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    optimizer.zero_grad()
    F.cross_entropy(model(x), torch.arange(len(x)) % 4).backward()
    optimizer.step()


class Functional(nn.Module):
    """A convolution, pooled and rectified; a layer and tanh; a sigmoid gate; a plain head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.wide = nn.Conv2d(1, 6, 3), nn.Linear(6 * 9, 8)
        self.gate, self.value, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        with torch.no_grad():
            self.conv.bias[:2] = -100.0
            self.wide.weight.mul_(1e3)
            self.gate.bias.fill_(50.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(F.max_pool2d(self.conv(x), 2)).flatten(1)
        x = torch.tanh(self.wide(x))
        return self.head(torch.tanh(1e3 * self.value(x)) * torch.sigmoid(self.gate(x)))


def test_what_functions_do_is_noted_with_their_layers(watch):
    torch.manual_seed(0)
    model = Functional()
    with watch(model, activations=True) as w:
        step(model, torch.randn(16, 1, 8, 8))
    run = w.run
    np.testing.assert_allclose(run.series("activation_dead_fraction", "conv"), 2 / 6)
    assert run.series("activation_saturated_fraction", "wide")[0] > 0.9
    for layer in ("gate", "value", "head"):  # a gate may be shut, what it gates may be flat, a head has no function
        assert np.isnan(run.series("activation_saturated_fraction", layer)).all()
        assert run.series("activation_dead_fraction", layer)[0] == 0


class OneForAll(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.relu = nn.ReLU()
        nn.init.constant_(self.second.bias, -100.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.first(x))
        return self.head(self.relu(x + self.second(x)))


def test_one_module_that_serves_several_layers(watch):
    torch.manual_seed(0)
    model = OneForAll()
    with watch(model, activations=True) as w:
        step(model, torch.randn(16, 5))
    assert w.run.series("activation_dead_fraction", "second")[0] == 1
    assert w.run.series("activation_dead_fraction", "first")[0] < 1


def test_units_that_fall_silent_are_seen_before_the_window_has_passed(watch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4))
    with watch(model, activations=True) as w:
        for number in range(12):
            if number == 8:
                nn.init.constant_(model[0].bias, -100.0)
            step(model, torch.randn(16, 5))
    np.testing.assert_array_equal(w.run.series("activation_dead_fraction", "1"), [0.0] * 11 + [1.0])


class Sum(nn.Module):
    """A container with a sum of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.straight, self.branch = nn.Linear(5, 8), nn.Linear(5, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.straight(x) + 1e4 * self.branch(x)


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sum, self.head = Sum(), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.sum(x)))


def test_what_a_container_does_belongs_to_its_last_part(watch):
    torch.manual_seed(0)
    model = Adapted()
    with watch(model, activations=True) as w:
        step(model, torch.randn(16, 5))
    assert w.run.series("activation_saturated_fraction", "sum.branch")[0] > 0.9
    assert np.isnan(w.run.series("activation_saturated_fraction", "sum")).all()


def test_a_function_with_a_module_is_left_to_it(watch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    nn.init.constant_(model[2].bias, -100.0)
    with watch(model, activations=True) as w:
        step(model, 1e4 * torch.randn(16, 5))
    run = w.run
    assert run.series("activation_saturated_fraction", "1")[0] > 0.9
    assert np.isnan(run.series("activation_saturated_fraction", "0")).all()
    assert run.series("activation_dead_fraction", "2")[0] == 0
    assert run.series("activation_dead_fraction", "3")[0] == 1
