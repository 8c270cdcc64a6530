"""The engine: silent on health, deterministic, and robust to how frames arrive."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.detect.building import Training, chain

from undertow.detect.engine import Condition, Engine, FrameView, Judgement, Stage
from undertow.detect.engine.registry import conditions
from undertow.schema import STREAMS, Block, Frame


def test_health_is_silent() -> None:
    assert Training().run(200).findings() == []


@pytest.mark.parametrize("blocks_cover_all", [False, True])
def test_sampled_streams_and_disjoint_layers_are_silent(blocks_cover_all: bool) -> None:
    training = Training(blocks_cover_all=blocks_cover_all)
    for step in range(120):
        streams = ("gradient",) if step % 5 else ("gradient", "weight", "update", "activation")
        training.run(1, streams=streams, only=("first", "second") if step % 2 else ("third", "head"))
    assert training.findings() == []


SICKNESSES: list[dict[str, Any]] = [
    {"gradient_nonfinite_count": {"first": 1.0}},
    {"weight_nonfinite_count": {"first": 1.0}},
    {"gradient_state": {"first": 1.0}, "stepped_gradient_max_abs": {"first": math.nan}},
    {"gradient_state": {"first": 2.0}},
    {"gradient_zero_fraction": {"first": 1.0}},
    {"gradient_carried": {"first": 1.0}},
    {"gradient_optimizer": {"first": -1.0}},
    {"update_norm": {"first": 0.0}},
]


@pytest.mark.parametrize("blocks_cover_all", [False, True])
@pytest.mark.parametrize("sick", SICKNESSES)
def test_optimizers_in_turn_hide_nothing(sick: dict[str, Any], blocks_cover_all: bool) -> None:
    """Frames of another optimizer in between neither heal nor spread a condition."""
    training = Training(blocks_cover_all=blocks_cover_all)
    for place in range(20):
        norm = 0.1 + 0.001 * place
        training.run(1, only=("first", "second"), gradient_norm=norm, **sick).run(1, only=("third", "head"))
    (finding,) = training.findings()
    assert finding.ongoing
    assert set(finding.layers) == {"first.weight", "first.bias"}
    assert [entry[0] for entry in training.log] == ["opened"]


def test_the_same_frames_give_the_same_verdicts() -> None:
    training = Training().run(5, gradient_state={"first": 2.0})
    training.run(12, gradient_zero_fraction={"third": 1.0}).run(3, scalars={"loss": math.nan}).run(4)
    again = Engine()
    again.set_layers(training.layers, training.graph)
    for frame in training.frames:
        again.observe(frame)
    assert repr(again.findings()) == repr(training.findings())
    assert len(training.findings()) == 3


def test_layers_may_be_added_while_running() -> None:
    layers, graph = chain("first")
    training = Training("first", "second")
    # Numbered by hand: ids never change, so the first table is the start of the second.
    training.engine.set_layers(type(layers)(training.layers.layers[:2]), graph)
    training.run(3, only=("first.weight", "first.bias"), streams=("gradient",))
    training.engine.set_layers(training.layers, training.graph)
    training.run(6, gradient_optimizer={"second": -1.0})
    assert training.findings()[0].layers == ("second.weight", "second.bias")


def test_layers_that_no_table_names_are_left_out() -> None:
    training = Training()
    shape = (len(STREAMS["gradient"].quantities), 1)
    block = Block("gradient", np.array([999], np.int32), np.ones(shape, np.float32))
    assert training.engine.observe(Frame(0, 0, 0.0, {}, {"gradient": block})) == []


def test_a_condition_that_comes_and_goes_is_one_finding() -> None:
    training = Training()
    for _ in range(4):
        training.run(2, gradient_nonfinite_count={"first": 1.0}).run(2)
    (finding,) = training.findings()
    assert (finding.first_step, finding.detected_step, finding.last_step, finding.ongoing) == (0, 0, 13, False)
    assert [entry[0] for entry in training.log] == ["opened", "closed"] + ["updated", "closed"] * 3


@pytest.mark.parametrize("sick", [SICKNESSES[2], SICKNESSES[4], SICKNESSES[6], SICKNESSES[7]])
def test_a_few_frames_far_apart_tell_as_much_as_many(sick: dict[str, Any]) -> None:
    training = Training()
    for step in (0, 1, 48):
        training.step = step
        training.run(1, **sick)
    (finding,) = training.findings()
    assert (finding.first_step, finding.detected_step) == (0, 48)
    close = Training().run(3, **sick)
    assert close.findings() == []


class Counter(Condition):
    """Counts what it is shown."""

    code, variant, stage = "WGT001", "counter", Stage.COURSE
    pace = ("weight", 5)
    steps: ClassVar[list[int]] = []

    def observe(self, view: FrameView) -> Judgement | None:
        if view.ids("weight") is not None:
            self.steps.append(view.step)
        return None


@pytest.mark.parametrize("weights_every", [1, 3, 10])
@pytest.mark.parametrize("together", [1, 50])
def test_a_slow_rule_sees_one_frame_in_its_pace(weights_every: int, together: int) -> None:
    training = Training()
    for step in range(200):
        training.run(1, streams=("gradient", "weight") if step % weights_every == 0 else ("gradient",))
    Counter.steps.clear()
    engine = Engine([Counter])
    engine.set_layers(training.layers, training.graph)
    for first in range(0, 200, together):
        engine.observe_many(training.frames[first : first + together])
    measured = [step for step in range(200) if step % weights_every == 0]
    early = [step for step in measured if step < 64]
    assert Counter.steps[: len(early)] == early
    gaps = np.diff(Counter.steps[len(early) - 1 :])
    assert gaps.min() >= min(5, gaps.max())
    assert gaps.max() <= 5 + weights_every


class Stumbling(Counter):
    variant = "stumbling"

    def observe(self, view: FrameView) -> Judgement | None:
        raise ZeroDivisionError("on purpose")


@pytest.mark.parametrize("together", [1, 20])
def test_a_rule_that_stumbles_is_left_out_and_named(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "strict", False)
    training = Training().run(20)
    engine = Engine([Stumbling, *conditions()])
    engine.set_layers(training.layers, training.graph)
    for first in range(0, 20, together):
        engine.observe_many(training.frames[first : first + together])
    assert engine.gaps() == [
        "WGT001 (stumbling) was not judged to the end: its rule stumbled over ZeroDivisionError: on purpose"
    ]
