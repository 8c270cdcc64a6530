"""Modules are sampled in turn: each in time, within the budget, and with the same numbers as all of them at once."""

from __future__ import annotations

import sys

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.probe.test_schedule import FakeModules
from torch import nn

import undertow
from undertow.probe.forward import ModuleReading
from undertow.probe.rotation import Rotation
from undertow.probe.schedule import FREE_SECONDS, Governor
from undertow.schema.coverage import longest_gap
from undertow.schema.quantities import QUANTITIES


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(1e-5, 1.5e-3), min_size=1, max_size=60),
    st.floats(0, 1e-3),
    st.floats(1e-3, 0.05),
    st.sampled_from([100, 300, 1000]),
)
def test_every_module_is_seen_in_time_where_the_budget_allows(seconds, graph, step_seconds, steps):
    """The promise is a module every 25 steps, or ten times so far; twice that is the longest that it goes unseen."""
    scale = min(1.0, 4e-3 / (sum(seconds) + graph))  # a round of 4 ms, 0.16 ms a step
    governor = Governor(every=None)
    modules = FakeModules(governor, [one * scale for one in seconds], graph * scale)
    added = 0.0
    for step in range(steps):
        spent = modules.step(step)
        governor.spent({"always": 1e-5, **spent}, step_seconds + sum(spent.values()), first=step == 0)
        added += sum(spent.values()) if step >= 2 else 0.0
    assert max(modules.gaps(steps).values()) <= longest_gap(steps)
    assert added / steps <= max(0.01 * step_seconds, FREE_SECONDS)


def test_a_first_sample_that_was_slow_is_forgotten():
    """Everything is slow once: what it takes later is what counts."""
    governor = Governor(every=None)
    modules = FakeModules(governor, [1e-4] * 50)
    for step in range(400):
        spent = modules.step(step, noise=20.0 if step < 2 else 1.0)
        governor.spent({"always": 1e-5, **spent}, 0.02 + sum(spent.values()), first=step == 0)
    assert min(map(len, modules.seen.values())) >= 10


def test_a_module_that_did_not_run_is_sampled_until_it_does():
    rotation, every = Rotation(), frozenset(range(20))
    readings = {one: ModuleReading(lambda: None, nn.Module, {}, calls=1, seconds=1.0) for one in every}
    rotation.learn({one: reading for one, reading in readings.items() if one != 3}, every, [], 0.0)
    for step in range(30):
        sample = rotation.next(step, 6.0, 5.0)
        assert sample is not None
        assert 3 in sample.measured
        rotation.note({one: readings[one] for one in sample.measured - {3}}, 0.0)
    sample = rotation.next(30, 6.0, 5.0)
    assert sample is not None
    rotation.note({one: readings[one] for one in sample.measured}, 0.0)
    sample = rotation.next(31, 6.0, 5.0)
    assert sample is not None
    assert 3 not in sample.measured
    rotation.note({one: readings[one] for one in sample.measured}, 0.0)
    sampled: list[int] = []
    for step in range(32, 82):
        if (sample := rotation.next(step, 6.0, 5.0)) is not None:
            sampled += sample.measured
            rotation.note({one: readings[one] for one in sample.measured}, 0.0)
    assert sampled.count(3) >= sampled.count(4) - 1 > 5  # it takes its turn like the others


def test_two_halves_of_a_model_that_run_in_turn_are_sampled_alike():
    governor = Governor(every=None)
    modules = FakeModules(governor, [1e-4] * 40)
    for step in range(600):
        ran = frozenset(range(20) if step % 2 else range(20, 40))
        spent = modules.step(step, runs=ran)
        governor.spent({"always": 1e-5, **spent}, 0.02 + sum(spent.values()), first=step == 0)
    assert min(map(len, modules.seen.values())) >= 10


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv1d(3, 4, 1), nn.ReLU(), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.5))
        self.shared = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shared(torch.relu(self.shared(self.inner(x))))


def _train(folder, monkeypatch, activations: int | None = None):
    monkeypatch.setattr(Governor, "_due", lambda self, kind, step: kind != "activation" or step < 2)
    monkeypatch.setattr(Governor, "_set_intervals", lambda self: None)
    torch.manual_seed(0)
    model = nn.Sequential(Block(), nn.Flatten(), nn.Linear(24, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with undertow.watch(model, optimizer, run_dir=folder, activations=activations, quiet=True) as watch:
        for _ in range(40):
            optimizer.zero_grad()
            model(torch.randn(5, 3, 6)).square().mean().backward()
            optimizer.step()
    return watch.run, {name: value.clone() for name, value in model.state_dict().items()}


def test_a_module_that_is_sampled_in_turn_has_the_same_numbers(tmp_path, monkeypatch):
    whole, weights = _train(tmp_path / "whole", monkeypatch, activations=1)
    monkeypatch.setattr(Rotation, "next", _three_at_a_time())
    turned, same_weights = _train(tmp_path / "turned", monkeypatch)
    assert all(torch.equal(weights[name], same_weights[name]) for name in weights)
    assert 0 < np.isnan(turned.matrix("activation_calls")[2:]).mean() < 1
    for quantity in [name for name in whole.quantities if name in turned.quantities]:
        if QUANTITIES[quantity].stream != "activation" or quantity == "activation_dead_fraction":
            continue  # the latter is over a window of samples
        expected, found = whole.matrix(quantity), turned.matrix(quantity)
        seen = ~np.isnan(found)
        assert np.array_equal(expected[seen], found[seen]), quantity
    calls = turned.matrix("activation_calls")
    assert (~np.isnan(calls[2:])).any(axis=0).sum() == (~np.isnan(whole.matrix("activation_calls"))).any(axis=0).sum()


def _three_at_a_time():
    original = Rotation.next

    def choose(self: Rotation, step: int, seconds: float, most: float, may_sample: bool):
        for unit in self._units:
            unit.seconds = 1.0
        self._hooked, self._saved = 0.0, 3.0
        return original(self, step, 0.0, 3.0)

    return choose


def test_steps_between_samples_cost_the_same_for_any_number_of_modules():
    """For thousands of them, going through all at every step would be most of the budget."""

    def calls(modules: int) -> int:
        rotation = Rotation()
        readings = {one: ModuleReading(lambda: None, nn.Module, {}, calls=1, seconds=1e-4) for one in range(modules)}
        rotation.learn(readings, readings, (), 0.0)
        count = 0

        def note(*_: object) -> None:
            nonlocal count
            count += 1

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            assert rotation.next(5, 1e-6, 1.0) is None
        finally:
            sys.setprofile(before)
        return count

    assert calls(2) == calls(2000)
