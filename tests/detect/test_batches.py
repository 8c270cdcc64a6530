"""Frames observed together: the same changes, findings and memories as one after the other."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.detect.building import Training, chain

from undertow.detect.engine import Condition, Engine, FindingChange, FrameView, Judgement, Stage, where_scalar
from undertow.schema import STREAMS, Block, Frame, LayerTable, Severity

NAN, INF = float("nan"), float("inf")
LAYERS, GRAPH = chain("first", "second", "third")
PATHS = [layer.path for layer in LAYERS.parameters]

FAULTS: dict[str, list[float]] = {
    "gradient_nonfinite_count": [0.0, 1.0, NAN],
    "gradient_zero_fraction": [0.0, 1.0, 0.5, NAN],
    "gradient_state": [0.0, 1.0, 2.0, NAN],
    "gradient_carried": [0.0, 1.0, NAN],
    "gradient_optimizer": [0.0, 1.0, -1.0, NAN],
    "stepped_gradient_max_abs": [0.0, 0.01, 1e-9, NAN],
    "weight_nonfinite_count": [0.0, 2.0, NAN],
    "weight_max_abs": [0.3, 7.0, NAN],
    "update_norm": [0.0, 1e-3, NAN],
    "gradient_norm": [1.0, 1e-9, 1e6, NAN],
    "gradient_cosine": [0.1, -0.9, 0.9, NAN],
    "weight_norm": [1.0, 1e-4, 50.0, NAN],
    "weight_drift": [0.1, 1e-6, 2.0, NAN],
    "weight_rows_unused": [0.999, 0.1, NAN],
    "update_ratio": [1e-3, 0.5, 1e-9, NAN],
    "router_load_max": [0.5, 1.0, NAN],
    "activation_calls": [0.0, 1.0, NAN],
    "activation_zero_fraction": [0.5, 1.0, NAN],
}
SCALARS: dict[str, list[float]] = {
    "loss": [1.0, 0.0, NAN, INF, -1.0, 50.0, 0.01],
    "lr": [0.1, 0.0, 1.0],
    "step_skipped": [0.0, 1.0],
    "clip_coefficient": [1.0, 1e-4, 0.5],
    "gradient_norm_total": [1.0, 1e3, NAN],
    "backward_count": [1.0, 2.0],
    "loss_kind": [1.0, 0.0, NAN],
    "loss_rows": [64.0, 1.0],
    "val_loss": [1.0, 3.0],
    "optimizer_made_anew": [1.0, 0.0],
    "another_training": [1.0, 0.0],
    "input_std": [1.0, 300.0],
    "label_entropy": [2.0, 0.0],
    "target_mean": [0.0, 1e4],
}

PERIODS = st.lists(
    st.fixed_dictionaries(
        {
            "steps": st.integers(1, 24),
            "every": st.integers(1, 4),  # weights, updates and activations are sampled at one step of so many
            "turns": st.booleans(),  # two optimizers step in turn
            "covers_all": st.booleans(),  # layers of the other one are NaN, or absent
            "logs": st.booleans(),  # a frame of scalars only after each step
            "streams": st.sets(st.sampled_from(["gradient", "weight", "update", "activation"]), min_size=2),
            "faults": st.lists(
                st.tuples(st.sampled_from(sorted(FAULTS)), st.integers(0, 3), st.sampled_from([*PATHS, "all"])),
                max_size=4,
            ),
            "scalars": st.dictionaries(st.sampled_from(sorted(SCALARS)), st.integers(0, 6), max_size=3),
            "flicker": st.integers(0, 9),  # at one step of so many all is well; 0: never
        }
    ),
    min_size=1,
    max_size=6,
)


def frames_of(periods: list[dict[str, Any]]) -> list[Frame]:
    training = Training("first", "second", "third")
    frames: list[Frame] = []
    step = 0
    for period in periods:
        training.blocks_cover_all = period["covers_all"]
        changes: dict[str, Any] = {}
        for name, choice, path in period["faults"]:
            value = FAULTS[name][choice % len(FAULTS[name])]
            if path == "all":
                changes[name] = value
            else:
                where = path.rpartition(".")[0] if name.startswith("activation") else path
                known = changes.get(name)
                changes[name] = {**(known if isinstance(known, dict) else {}), where: value}
        scalars = {name: SCALARS[name][choice % len(SCALARS[name])] for name, choice in period["scalars"].items()}
        for _ in range(period["steps"]):
            well = period["flicker"] and step % period["flicker"] == 0
            streams = tuple(s for s in sorted(period["streams"]) if s == "gradient" or step % period["every"] == 0)
            only = (("first",), ("second", "third"))[step % 2] if period["turns"] else None
            training.step = step
            made = training.frame({} if well else scalars, streams, only, **({} if well else changes))
            frames.append(dataclasses.replace(made, sequence=len(frames)))
            if period["logs"]:
                frames.append(Frame(len(frames), step, 0.0, {"accuracy": 0.5}))
            step += 1
    return frames


def one_by_one(engine: Engine, frames: list[Frame]) -> list[tuple[Frame, list[FindingChange]]]:
    observed = [(frame, engine.observe(frame)) for frame in frames]
    return [(frame, changes) for frame, changes in observed if changes]


def period(*faults: tuple[str, int, str]) -> dict[str, Any]:
    quiet = {"every": 1, "turns": False, "covers_all": False, "logs": False, "scalars": {}, "flicker": 0}
    return {"steps": 6, "streams": {"gradient", "update"}, "faults": list(faults), **quiet}


UNUSED = ("gradient_state", 1, PATHS[0])
DROPPED = ("gradient_optimizer", 2, PATHS[0])  # by its optimizer, while it has no gradient


@settings(max_examples=150, deadline=None)
@example(periods=[period(UNUSED), period(UNUSED, DROPPED)], sizes=[50], known=len(LAYERS))
@given(periods=PERIODS, sizes=st.lists(st.integers(1, 50), min_size=1, max_size=5), known=st.integers(5, len(LAYERS)))
def test_the_same_as_one_by_one(periods: list[dict[str, Any]], sizes: list[int], known: int) -> None:
    """The layer table grows after the first batch, so that frames of the first may name unknown layers."""
    frames = frames_of(periods)
    single, together = Engine(), Engine()
    table = LayerTable(LAYERS.layers[:known])
    done = turn = 0
    while done < len(frames):
        single.set_layers(table, GRAPH)
        together.set_layers(table, GRAPH)
        batch = frames[done : done + sizes[turn % len(sizes)]]
        expected, found = one_by_one(single, batch), together.observe_many(batch)
        assert [frame.sequence for frame, _ in found] == [frame.sequence for frame, _ in expected]
        assert [repr(changes) for _, changes in found] == [repr(changes) for _, changes in expected]
        done, turn, table = done + len(batch), turn + 1, LAYERS
    assert repr(together.findings()) == repr(single.findings())


class ThirdStep(Condition):
    """Declares nothing, and so must see every frame."""

    code, variant, stage = "OPT002", "third-step", Stage.OUTCOME
    steps: ClassVar[list[int]] = []

    def observe(self, view: FrameView) -> Judgement | None:
        self.steps.append(view.step)
        return Judgement(Severity.MILD) if view.step == 3 else None


class WithLargeLoss(ThirdStep):
    variant, wakes_on = "with-large-loss", where_scalar("loss", lambda loss: loss > 5)


def observed(kind: type[ThirdStep], losses: list[float]) -> list[int]:
    training, engine = Training("first", "second", "third"), Engine([kind])
    engine.set_layers(LAYERS, GRAPH)
    kind.steps.clear()
    frames = [training.frame({"loss": loss}) for loss in losses]
    frames = [dataclasses.replace(frame, sequence=i, step=i) for i, frame in enumerate(frames)]
    engine.observe_many(frames)
    return list(kind.steps)


def test_a_condition_that_declares_nothing_sees_every_frame() -> None:
    assert observed(ThirdStep, [1.0] * 6) == [0, 1, 2, 3, 4, 5]


def test_a_calm_condition_sees_only_what_it_wakes_on() -> None:
    assert observed(WithLargeLoss, [1.0, 9.0, 1.0, 1.0, 9.0, 1.0]) == [1, 4]


def test_layers_come_in_another_order() -> None:
    """Blocks of one stream over other layers are no part of the same batch."""
    engine = Engine()
    engine.set_layers(LAYERS, GRAPH)
    names = STREAMS["gradient"].names
    frames: list[Frame] = []
    for step in range(12):
        ids = np.array([0, 2, 4] if step % 2 else [4, 2], np.int32)
        values = np.zeros((len(names), len(ids)), np.float32)
        values[names.index("gradient_nonfinite_count"), 0] = step == 7
        frames.append(Frame(step, step, 0.0, {}, {"gradient": Block("gradient", ids, values)}))
    ((frame, changes),) = [one for one in engine.observe_many(frames) if one[1][0].change == "opened"]
    assert (frame.step, changes[0].finding.code, changes[0].finding.layers) == (7, "NUM001", ("first.weight",))
