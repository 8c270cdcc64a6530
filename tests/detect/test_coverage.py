"""How often each layer was measured: counted frame by frame, however frames are split into batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.detect.building import chain

from undertow.detect.engine import Engine
from undertow.detect.features.loss_trend import ANOTHER_TRAINING
from undertow.schema import STREAMS, Block, Frame, LayerGraph, LayerTable, StreamCoverage

LAYERS, GRAPH = chain("first", "second")
WEIGHTS = [layer.id for layer in LAYERS.parameters]


def frame(sequence: int, step: int, measured: list[int], **scalars: float) -> Frame:
    """Gradients of these layers are measured; the others are in the block as NaN."""
    if not measured:
        return Frame(sequence, step, 0.0, scalars)
    stream = STREAMS["gradient"]
    values = np.full((len(stream.quantities), len(WEIGHTS)), np.nan, np.float32)
    values[stream.names.index("gradient_state"), [WEIGHTS.index(one) for one in measured]] = 0.0
    return Frame(sequence, step, 0.0, scalars, {"gradient": Block("gradient", np.array(WEIGHTS, np.int32), values)})


def coverage(
    frames: list[Frame], sizes: list[int] = (), layers: LayerTable = LAYERS, graph: LayerGraph = GRAPH
) -> dict[str, StreamCoverage]:
    engine, rest = Engine([]), list(frames)
    engine.set_layers(layers, graph)
    for size in sizes:
        engine.observe_many(rest[:size])
        rest = rest[size:]
    engine.observe_many(rest)
    return engine.coverage()


@given(
    st.lists(st.tuples(st.integers(1, 40), st.lists(st.sampled_from(WEIGHTS), unique=True)), min_size=1, max_size=30),
    st.lists(st.integers(1, 7), max_size=10),
)
def test_counts_are_those_of_a_plain_loop(record, sizes):
    steps = np.cumsum([distance for distance, _ in record]).tolist()
    frames = [frame(number, step, ids) for number, (step, (_, ids)) in enumerate(zip(steps, record))]
    found = coverage(frames, sizes)["gradients"]
    seen = {one: [step for step, (_, ids) in zip(steps, record) if one in ids] for one in WEIGHTS}
    gaps = [b - a for times in seen.values() for a, b in zip([steps[0] - 1, *times], [*times, steps[-1]])]
    counts = [len(times) for times in seen.values()]
    assert (found.steps, found.of) == (sum(bool(ids) for _, ids in record), steps[-1] - steps[0] + 1)
    assert (found.steps_per_layer.min, found.steps_per_layer.median) == (min(counts), np.median(counts))
    assert found.largest_gap == max(gaps)
    assert found.layers == len(WEIGHTS)
    assert found.layers_unseen == tuple(LAYERS[one].path for one, times in seen.items() if not times)


def test_steps_that_two_optimizers_share_count_once():
    frames = [frame(2 * step + part, step, WEIGHTS[part::2], loss=1.0) for step in range(10) for part in (0, 1)]
    found = coverage(frames)
    assert found["gradients"].steps == found["loss"].steps == found["loss"].of == 10


def test_layers_of_an_earlier_training_need_not_be_seen_again():
    first = [frame(step, step, WEIGHTS[:2]) for step in range(60)]
    begins = frame(60, 60, WEIGHTS[2:], **{ANOTHER_TRAINING: 1.0})
    later = [frame(step, step, WEIGHTS[2:]) for step in range(61, 200)]
    assert coverage([*first, begins, *later])["gradients"].largest_gap == 1


def test_a_layer_that_joins_late_is_counted_from_then_on():
    engine = Engine([])
    few, _ = chain("first")
    engine.set_layers(LayerTable.of(few), LayerGraph())
    engine.observe_many([Frame(step, step, 0.0) for step in range(100)])
    engine.set_layers(LAYERS, GRAPH)
    engine.observe_many([frame(step, step, WEIGHTS) for step in range(100, 110)])
    late = [one for one in WEIGHTS if one >= len(few)]
    assert late
    assert engine.coverage()["gradients"].largest_gap == 101  # only the layers that were there all along waited


@pytest.mark.parametrize(
    ("every", "steps", "is_thin"),
    [(1, 40, False), (25, 400, False), (38, 400, False), (60, 400, True), (90, 400, True), (400, 401, True)],
)
def test_what_is_too_rare_to_judge(every, steps, is_thin):
    frames = [frame(step, step, WEIGHTS if step % every == 0 else []) for step in range(steps)]
    assert coverage(frames)["gradients"].is_thin is is_thin
