"""The governor: whatever a measurement costs, the whole stays within the budget."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import undertow
from undertow.probe.forward import ModuleReading
from undertow.probe.rotation import Rotation
from undertow.probe.schedule import FREE_SECONDS, CostModel, Governor, Plan
from undertow.probe.step import StepMachine
from undertow.schema.coverage import longest_gap


class FakeModules:
    """Modules that take so many seconds each to be sampled, as a training would meet them."""

    def __init__(self, governor: Governor, seconds: list[float], graph: float = 0.0) -> None:
        self.governor, self.seconds, self.graph, self.rotation = governor, seconds, graph, Rotation()
        self.seen: dict[int, list[int]] = {module: [] for module in range(len(seconds))}
        self.samples = 0

    def step(self, step: int, noise: float = 1.0, runs: frozenset[int] | None = None) -> dict[str, float]:
        """What the samples of a step cost, by kind."""
        plan, sample = self.governor.plan(step), None
        if not plan.activation:
            sample = self.rotation.next(step, *self.governor.for_modules(plan))
        if not plan.activation and sample is None:
            return {}
        self.samples += 1
        sample = None if sample is None or sample.is_whole else sample
        ran = runs if runs is not None else frozenset(self.seen)
        chosen = [one for one in ran if sample is None or one in sample.measured]
        readings = {one: ModuleReading(lambda: None, nn.Module, {}, calls=1) for one in chosen}
        for one, reading in readings.items():
            reading.seconds = self.seconds[one] * noise
            self.seen[one].append(step)
        of_graph = self.graph * noise if sample is None or sample.with_graph else 0.0
        for one in ran - readings.keys() if sample is not None and sample.with_graph else ():
            readings[one] = ModuleReading(lambda: None, nn.Module, {}, calls=1, is_measured=False)
        if sample is None:
            self.rotation.learn(readings, self.seen, [], of_graph)
        else:
            self.rotation.note(readings, of_graph)
        self.governor.round_seconds = self.rotation.seconds
        spent = sum(reading.seconds for reading in readings.values()) + of_graph
        return {"activation" if sample is None else "rotation": spent}

    def gaps(self, steps: int) -> dict[int, int]:
        return {one: max(b - a for a, b in zip(at, [*at[1:], steps])) for one, at in self.seen.items()}


def simulate(governor: Governor, step_seconds: float, costs: dict[str, float], steps: int = 4000) -> dict[str, float]:
    """Seconds added per step and frames per kind, after the first hundred steps."""
    chance = random.Random(0)
    added, taken = 0.0, dict.fromkeys(costs, 0)
    modules = FakeModules(governor, [costs["activation"] / 20] * 20)
    for step in range(steps):
        plan = governor.plan(step)
        spent = {"always": 1e-5}
        for kind in costs:
            noise = chance.choice([0.9, 1.0, 1.1, 1.0, 8.0 if chance.random() < 0.05 else 1.0])
            if kind == "activation":
                spent |= modules.step(step, noise)
            elif getattr(plan, kind):
                spent[kind] = costs[kind] * noise
                taken[kind] += step >= 100
        governor.spent(spent, step_seconds + sum(spent.values()), first=step == 0)
        added += sum(spent.values()) if step >= 100 else 0.0
    taken["activation"] = min(sum(step >= 100 for step in at) for at in modules.seen.values())
    return {"added": added / (steps - 100), **taken}


@pytest.mark.parametrize("step_seconds", [2e-4, 5e-3, 0.1, 1.0])
@pytest.mark.parametrize("scale", [0.01, 0.1, 1.0, 10.0])
def test_keeps_the_budget(step_seconds, scale):
    costs = {"gradient": 8e-3 * scale, "weight": 6e-3 * scale, "activation": 3e-2 * scale}
    result = simulate(Governor(every=None), step_seconds, costs)
    allowed = max(0.01 * step_seconds, FREE_SECONDS)
    floor = sum(costs.values()) / 1000  # each kind is taken once in a thousand steps whatever it costs
    assert result["added"] <= 1.1 * allowed + floor
    assert all(result[kind] > 0 for kind in costs)


@pytest.mark.parametrize("floor", [2e-4, 5e-4, 1e-2])
def test_keeps_to_the_floor_that_was_asked_for(floor):
    costs = {"gradient": 8e-4, "weight": 6e-4, "activation": 3e-3}
    result = simulate(Governor(None, floor=floor), 2e-3, costs, 4000)
    assert result["added"] <= 1.1 * floor
    assert result["gradient"] >= 3900 / 25  # what must hold exactly is still looked at
    if floor == 1e-2:
        assert min(result["gradient"], result["activation"]) > 3800


def test_measures_every_step_where_that_is_free():
    result = simulate(Governor(every=None), 1e-3, {"gradient": 1e-4, "weight": 1e-4, "activation": 1e-4}, 500)
    assert (result["gradient"], result["weight"], result["activation"]) == (400, 400, 400)


def test_a_number_is_kept_as_given():
    governor = Governor(every=3, activations=False)
    plans = [governor.plan(step) for step in range(7)]
    assert [plan.gradient for plan in plans] == [True, False, False, True, False, False, True]
    assert [plan.weight for plan in plans] == [plan.gradient for plan in plans]
    assert not any(plan.activation for plan in plans)


def test_one_slow_step_changes_nothing():
    governor = Governor(every=None)
    for step in range(64):
        seconds = {"always": 1e-5, "gradient": 5e-2 if step == 20 else 1e-4}
        governor.spent(seconds, 1e-3 + sum(seconds.values()), first=step == 0)
    assert all(governor.plan(step).gradient for step in range(100, 120))


def test_reports_its_own_cost():
    governor = Governor(every=1)
    assert governor.fraction is None
    for step in range(11):
        governor.spent({"gradient": 1e-3}, 0.011, first=step == 0)
    governor.background(0.01, frames=10, measured=10)
    assert governor.seconds_per_step == pytest.approx(2e-3)
    assert governor.fraction == pytest.approx(0.02 / 0.1, rel=1e-6)


def test_the_background_counts_for_the_steps_that_are_measured(tmp_path, monkeypatch):
    """And for those between them, with a loss and little more."""
    counted: list[tuple[int, int]] = []
    monkeypatch.setattr(
        Governor, "background", lambda self, seconds, frames, measured: counted.append((frames, measured))
    )
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with undertow.watch(model, optimizer, run_dir=tmp_path / "run", every=4, activations=False, quiet=True):
        for _ in range(40):
            optimizer.zero_grad()
            model(torch.ones(5, 3)).square().mean().backward()
            optimizer.step()
    assert tuple(map(sum, zip(*counted, strict=True))) == (40, 10)


def note(costs: CostModel, batches: list[tuple[int, int]], of_any: float, of_measured: float) -> None:
    for frames, measured in batches:
        costs.note(frames, measured, of_any * frames + of_measured * measured)


def test_what_any_frame_costs_is_told_from_what_a_measured_one_adds():
    costs = CostModel()
    note(costs, [(30, 0), (28, 1), (31, 2), (29, 0), (30, 1)] * 8, 1e-4, 2e-3)
    assert costs.of_any == pytest.approx(1e-4, rel=0.2)
    assert costs.of_measured == pytest.approx(2e-3, rel=0.2)


def test_one_slow_batch_says_nothing():
    costs = CostModel()
    note(costs, [(100, 50)] * 20, 1e-4, 1e-4)
    before = costs.of_any + 0.5 * costs.of_measured
    costs.note(100, 50, 1.0)
    assert costs.of_any + 0.5 * costs.of_measured < 1.2 * before


@pytest.mark.parametrize("batches", [[(20, 20)], [(20, 5)], [(20, 0)], [(1, 1)]])
def test_batches_that_tell_nothing_apart_are_paid_for_all_the_same(batches):
    costs = CostModel()
    note(costs, batches * 10, 1e-4, 2e-3)
    frames, measured = batches[0]
    assert costs.of_any >= 0
    assert costs.of_measured >= 0
    assert frames * costs.of_any + measured * costs.of_measured == pytest.approx(frames * 1e-4 + measured * 2e-3)


@given(st.lists(st.tuples(st.integers(1, 300), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=40))
def test_no_cost_is_ever_below_nothing(batches):
    costs = CostModel()
    for frames, share, seconds in batches:
        costs.note(frames, int(share * frames), seconds)
        assert costs.of_any >= -1e-12
        assert costs.of_measured >= 0


@pytest.mark.parametrize("steps", [150, 400, 2000])
def test_everything_is_measured_as_often_as_a_verdict_needs(steps):
    costs = {"gradient": 2e-3, "weight": 1e-3, "activation": 5e-3}  # all of them every 25 steps: 0.32 ms a step
    governor, seen = Governor(every=None), {kind: [0] for kind in ("gradient", "weight")}
    modules = FakeModules(governor, [costs["activation"] / 40] * 40)
    for step in range(steps):
        plan = governor.plan(step)
        spent = {kind: costs[kind] for kind in seen if getattr(plan, kind)}
        for kind in spent:
            seen[kind].append(step)
        spent |= modules.step(step)
        governor.spent({"always": 1e-5, **spent}, 0.02 + sum(spent.values()), first=step == 0)
    for kind, at in [*seen.items(), *modules.seen.items()]:
        gaps = [after - before for before, after in zip(at, [*at[1:], steps])]
        assert max(gaps) <= longest_gap(steps), kind


def test_after_an_alarm_the_next_step_is_measured_whole():
    governor = Governor(every=None)
    for step in range(64):
        spent = {"always": 1e-5, "gradient": 3e-3, "weight": 1e-3, "activation": 0.5}
        governor.spent(spent, 0.02 + sum(spent.values()), first=step == 0)
    plan = governor.plan(67)
    assert not plan.anything
    assert governor.closer(plan) == Plan(gradient=True, weight=True, activation=False)  # half a second is too long
    assert Governor(every=4).closer(plan) == plan


def test_an_alarm_is_heard_by_the_training(tmp_path, monkeypatch):
    """Gradients that are never cleared are an alarm; it is heard once, however long it lasts."""
    heard: list[int] = []
    monkeypatch.setattr(StepMachine, "look_closer", lambda self: heard.append(self.step))
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with undertow.watch(model, optimizer, run_dir=tmp_path / "run", every=1, activations=False, quiet=True) as watch:
        for _ in range(40):
            model(torch.randn(5, 3)).square().mean().backward()
            optimizer.step()
    alarms = [finding for finding in watch.run.diagnose().findings if finding.severity.is_alarm]
    assert len(heard) == len(alarms) > 0


def test_what_is_expensive_does_not_starve_the_rest():
    result = simulate(Governor(every=None), 5e-3, {"gradient": 5e-4, "weight": 5e-4, "activation": 0.05})
    assert result["gradient"] >= 10 * result["activation"]


def test_in_a_long_run_modules_are_seen_as_often_as_in_a_short_one():
    """What a GPU asks for: 47 modules of 93 µs, and most of the budget spent on steps in which nothing is due."""
    governor, steps = Governor(every=None), 3000
    modules = FakeModules(governor, [93e-6] * 47)
    for step in range(steps):
        plan = governor.plan(step)
        spent = {"always": 3e-4, "gradient": 8e-4 * plan.gradient, "weight": 5e-4 * plan.weight, **modules.step(step)}
        governor.spent(spent, 0.015 + sum(spent.values()), first=step == 0)
    assert max(modules.gaps(steps).values()) <= 40
    assert min(map(len, modules.seen.values())) >= steps / 30
