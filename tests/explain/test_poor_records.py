"""Short, torn, silent and huge records: a useful answer, or what is missing."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.detect.building import Training

from undertow.run import Run, open_run
from undertow.schema import (
    STREAMS,
    Block,
    Frame,
    GraphNode,
    GraphSource,
    Health,
    Layer,
    LayerGraph,
    LayerKind,
    LayerTable,
    RunFacts,
    RunStatus,
)
from undertow.store.writer import RunWriter


def written(folder: Path, layers: LayerTable, graph: LayerGraph, frames: list[Frame]) -> Run:
    writer = RunWriter(folder, RunFacts(undertow="0", status=RunStatus.FINISHED))
    writer.set_layers(layers, graph)
    assert writer.append_many(frames) == len(frames)
    writer.close()
    return open_run(folder)


def of(folder: Path, training: Training) -> Run:
    return written(folder, training.layers, training.graph, training.frames)


def sentences(story: str) -> list[str]:
    return re.split(r"(?<=[.!?]) (?=[A-Z])", story)


@pytest.mark.parametrize("steps", [1, 2, 5, 20])
def test_a_few_steps_are_called_a_few(tmp_path: Path, steps: int) -> None:
    diagnosis = of(tmp_path / "run", Training().run(steps)).diagnose()
    assert diagnosis.health is Health.HEALTHY
    assert "only what is wrong at once" in diagnosis.story
    assert "nothing to do" not in diagnosis.story
    assert len(sentences(diagnosis.story)) == 3


def test_enough_steps_need_no_excuse(tmp_path: Path) -> None:
    diagnosis = of(tmp_path / "run", Training().run(60)).diagnose()
    assert diagnosis.story.endswith("There is nothing to do.")
    assert diagnosis.coverage.reasons == ()


def test_what_is_wrong_at_once_is_found_in_one_step(tmp_path: Path) -> None:
    diagnosis = of(tmp_path / "run", Training().run(1, gradient_nonfinite_count={"second": 4.0})).diagnose()
    assert diagnosis.culprit is not None
    assert (diagnosis.culprit.code, diagnosis.culprit.layer) == ("NUM001", "second.weight")


def test_a_gap_is_named(tmp_path: Path) -> None:
    training = Training().run(40)
    training.step = 5_000
    training.run(40)
    diagnosis = of(tmp_path / "run", training).diagnose()
    assert diagnosis.health is Health.HEALTHY
    assert "no step between 39 and 5,000 is in the record" in diagnosis.coverage.reasons
    assert len(sentences(diagnosis.story)) == 3


def test_steps_skipped_regularly_are_no_gap(tmp_path: Path) -> None:
    training = Training()
    for step in range(0, 4000, 100):
        training.step = step
        training.run(1)
    assert of(tmp_path / "run", training).diagnose().coverage.reasons == ()


def test_no_loss_is_said(tmp_path: Path) -> None:
    training = Training()
    for step in range(40):
        training.step = step
        frame = training.frame()
        scalars = {name: value for name, value in frame.scalars.items() if name != "loss"}
        training.frames.append(Frame(step, step, float(step), scalars, frame.blocks))
    diagnosis = of(tmp_path / "run", training).diagnose()
    assert diagnosis.health is Health.HEALTHY
    assert "no loss was seen" in diagnosis.coverage.reasons[0]
    assert "But no loss was seen" in diagnosis.story


def test_no_gradient_is_said(tmp_path: Path) -> None:
    diagnosis = of(tmp_path / "run", Training().run(40, streams=())).diagnose()
    assert "gradients were never measured" in diagnosis.coverage.reasons[0]


@pytest.mark.parametrize("steps", [1, 12])
def test_nothing_but_nan(tmp_path: Path, steps: int) -> None:
    nan: dict[str, Any] = dict.fromkeys(("gradient_norm", "weight_norm", "update_norm", "update_ratio"), math.nan)
    counts = {"gradient_nonfinite_count": 64.0, "weight_nonfinite_count": 64.0, "activation_nonfinite_count": 64.0}
    training = Training().run(steps, scalars={"loss": math.nan}, **nan, **counts)
    diagnosis = of(tmp_path / "run", training).diagnose()
    assert diagnosis.health is Health.CRITICAL
    assert diagnosis.findings[0].code.startswith("NUM")
    assert all(finding.follows_from for finding in diagnosis.findings[1:] if finding.severity.is_alarm)
    assert "no loss was seen" not in " ".join(diagnosis.coverage.reasons)


def test_ten_thousand_layers(tmp_path: Path) -> None:
    count = 10_000
    layers = LayerTable.of(
        Layer(f"layers.{i}.weight", kind=LayerKind.WEIGHT, order=i, parameter_count=4, group=f"layers.{i}")
        for i in range(count)
    )
    nodes = tuple(GraphNode(i, f"layers.{i}") for i in range(count))
    graph = LayerGraph(nodes, tuple((i, i + 1) for i in range(count - 1)), GraphSource.AUTOGRAD)
    names = STREAMS["gradient"].names
    values = np.full((len(names), count), np.nan, np.float32)
    for name, value in {"gradient_norm": 0.1, "gradient_state": 0.0, "gradient_optimizer": 0.0}.items():
        values[names.index(name)] = value
    values[names.index("gradient_zero_fraction")] = np.where(np.arange(count) < 9_000, 1.0, 0.0)
    ids = np.arange(count, dtype=np.int32)
    frames = [
        Frame(step, step, float(step), {"loss": 1.0}, {"gradient": Block("gradient", ids, values)})
        for step in range(12)
    ]
    diagnosis = written(tmp_path / "run", layers, graph, frames).diagnose()
    assert diagnosis.culprit is not None
    assert (diagnosis.culprit.code, diagnosis.culprit.layer) == ("GRD004", "layers.8999.weight")
    assert len(diagnosis.findings[0].layers) == 9_000
    assert len(diagnosis.story) < 600
