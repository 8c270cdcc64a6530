"""A round of looks at some modules each is, to the rules, one look at all of them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.detect.building import chain

from undertow.detect.engine import Condition, Engine, FrameView
from undertow.detect.engine.sampling_rounds import PART, SamplingRounds
from undertow.schema import Block, Frame
from undertow.schema.quantities import ACTIVATION, ACTIVATION_ROUND

LAYERS, GRAPH = chain("first", "second", "third")
MODULES = np.array([layer.id for layer in LAYERS.modules], np.int32)


def look(step: int, measured: list[int], share: float | None, **values: float) -> Frame:
    """At the modules in these places, in which all quantities are the number of the step unless said otherwise."""
    block = np.full((len(ACTIVATION.quantities), len(MODULES)), np.nan, np.float32)
    block[:, measured] = step
    block[[line for line, name in enumerate(ACTIVATION.names) if "nonfinite" in name]] *= 0
    for name, value in values.items():
        block[ACTIVATION.names.index(name), measured] = value
    scalars = {"loss": 1.0} if share is None else {"loss": 1.0, ACTIVATION_ROUND: share}
    return Frame(step, step, 0.0, scalars, {"activation": Block("activation", MODULES, block)})


def test_a_round_is_shown_when_it_is_complete():
    rounds, count = SamplingRounds(), len(MODULES)
    last = list(range(2, count))
    shown = [rounds.shown(one) for one in (look(5, [0], 0.3), look(8, [1], 0.6), look(9, last, 1.0))]
    assert [("activation" in one.blocks, PART in one.blocks) for one in shown] == [(False, True)] * 2 + [(True, True)]
    assert shown[2].blocks["activation"].quantity("activation_std").tolist() == [5.0, 8.0, *[9.0] * (count - 2)]
    again = rounds.shown(look(12, [0], 0.5))
    assert "activation" not in again.blocks
    assert np.isnan(rounds.shown(look(13, [1], 1.0)).blocks["activation"].quantity("activation_std")[2:]).all()


def test_a_whole_look_begins_a_new_round():
    rounds = SamplingRounds()
    rounds.shown(look(5, [0], 0.3))
    assert rounds.shown(look(6, [0, 1, 2], None)).blocks["activation"].quantity("activation_std")[0] == 6
    assert np.isnan(rounds.shown(look(7, [1], 1.0)).blocks["activation"].quantity("activation_std")[0])


def test_what_is_not_finite_is_shown_at_once():
    assert "activation" in SamplingRounds().shown(look(5, [0], 0.3, activation_nonfinite_count=2.0)).blocks


@pytest.mark.parametrize("together", [1, 3, 40])
def test_each_module_is_covered_at_its_own_steps(together):
    count = len(MODULES)
    frames = [look(step, [step % count], (step % count + 1) / count) for step in range(4 * count)]
    engine = Engine([])
    engine.set_layers(LAYERS, GRAPH)
    for first in range(0, len(frames), together):
        engine.observe_many(frames[first : first + together])
    found = engine.coverage()["activations"]
    assert (found.steps, found.of, found.largest_gap) == (4 * count, 4 * count, count)
    assert found.steps_per_layer is not None
    assert (found.steps_per_layer.min, found.steps_per_layer.median) == (4, 4.0)


def test_what_ran_in_this_step_is_told_from_what_ran_in_the_round():
    asked: dict[int, tuple[list[float], list[float]]] = {}

    class Asks(Condition):
        code, variant = "ACT001", "asks"

        def observe(self, view: FrameView) -> None:
            ids = np.array([layer.id for layer in LAYERS.parameters][:2], np.int32)
            now, ever = view.calls_now(ids), view.calls(ids)
            asked[view.step] = (now.tolist(), [] if ever is None else ever.tolist())

    engine = Engine([Asks])
    engine.set_layers(LAYERS, GRAPH)
    engine.observe_many([look(0, [0], 0.5, activation_calls=2.0), look(1, [1], 1.0, activation_calls=0.0)])
    owner = [
        int(np.flatnonzero(engine._layout.module[layer.id] == MODULES)[0]) for layer in list(LAYERS.parameters)[:2]
    ]
    by_step = {0: {0: 2.0}, 1: {1: 0.0}}
    for step, known in by_step.items():
        assert np.array_equal(asked[step][0], [known.get(one, np.nan) for one in owner], equal_nan=True)
    assert asked[0][1] == []
    assert asked[1][1] == [{0: 2.0, 1: 0.0}[one] for one in owner]
