"""What JAX measured becomes frames: on the host, in numpy."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.integrations.frame_writer import FrameWriter
from undertow.integrations.optax_kernel import Moves, Traced, is_measurable, partials
from undertow.measure import sketches
from undertow.measure.histograms import stored_histograms
from undertow.measure.partials import Partials
from undertow.measure.statistics import statistics
from undertow.schema import Block, Frame, Layer, LayerKind, LayerTable
from undertow.schema.quantities import STATISTIC_NAMES, STREAMS, GradientState

Floats = NDArray[np.float64]

_DISTRIBUTIONS_EVERY = 16  # frames between two stored histograms and sketches
_KINDS = {
    "kernel": LayerKind.WEIGHT,
    "weight": LayerKind.WEIGHT,
    "w": LayerKind.WEIGHT,
    "bias": LayerKind.BIAS,
    "b": LayerKind.BIAS,
    "scale": LayerKind.NORM_SCALE,
    "embedding": LayerKind.EMBEDDING,
}


class FrameMaker:
    def __init__(self, writer: FrameWriter) -> None:
        self._writer = writer
        self._sizes = np.zeros(0, np.int64)
        self._last = -1
        self._sequence = 0
        self._directions = _Directions()
        self._lock = threading.Lock()

    def describe(self, leaves: Iterable[tuple[Any, Any]]) -> None:
        """Paths and arrays, while the step is traced: that is when names and shapes are known."""
        if len(self._sizes):
            return
        known = [(path, leaf) for path, leaf in leaves if is_measurable(leaf)]
        self._sizes = np.array([leaf.size for _, leaf in known], np.int64)
        self._writer.put(LayerTable.of(_layer(path, leaf) for path, leaf in known))

    def take(self, count: Any, scalars: Mapping[str, Any], gradients: Traced, weights: Traced, moves: Moves) -> None:
        """`weights` are those after the step."""
        step = int(count)
        with self._lock:
            if step <= self._last or len(gradients.units) != len(self._sizes):
                return  # the same step from another device, or another model
            self._last = step
            numbers = {name: float(number) for name, number in scalars.items()}
            blocks = self._blocks(partials(gradients, self._sizes), partials(weights, self._sizes), moves)
            norms = blocks["gradient"].quantity("gradient_norm").astype(np.float64)
            numbers["gradient_norm_total"] = float(np.sqrt(np.square(norms).sum()))
            self._writer.put(Frame(self._sequence, step, time.time(), numbers, blocks))
            self._sequence += 1

    def _blocks(self, gradient: Partials, weight: Partials, moves: Moves) -> dict[str, Block]:
        before, length = (np.asarray(norms, np.float64) for norms in moves[:2])
        rows: dict[str, Floats | float] = {
            "gradient_state": GradientState.PRESENT,
            "gradient_carried": 0.0,
            "gradient_optimizer": 0.0,
            "update_norm": length,
            "update_ratio": length / _positive(before),
            **_statistics("gradient", gradient),
            **_statistics("weight", weight),
            **self._directions.follow(gradient, weight, np.asarray(moves.sketches, np.float64)),
        }
        blocks = {stream: self._block(stream, rows) for stream in ("gradient", "weight", "update")}
        if self._sequence % _DISTRIBUTIONS_EVERY == 0:
            both = (gradient, weight)
            spread = [stored_histograms(one.exponents) for one in both if one.exponents is not None]
            folded = [sketches.fold(one.sketches, one.offsets) for one in both if one.sketches is not None]
            blocks |= {"histogram": self._wide("histogram", spread), "sketch": self._wide("sketch", folded)}
        return blocks

    def _block(self, stream: str, rows: Mapping[str, Floats | float]) -> Block:
        names = STREAMS[stream].names
        values = np.full((len(names), len(self._sizes)), np.nan, np.float32)
        with np.errstate(over="ignore"):
            for line, name in enumerate(names):
                if name in rows:
                    values[line] = rows[name]
        return Block(stream, self._ids(), values)

    def _wide(self, stream: str, rows: list[NDArray[np.float32]]) -> Block:
        return Block(stream, self._ids(), np.stack([row.reshape(-1) for row in rows]))

    def _ids(self) -> NDArray[np.int32]:
        return np.arange(len(self._sizes), dtype=np.int32)


class _Directions:
    """What sketches tell of a look beside those before it. Without a torch optimizer in between there is no need for
    more than the last look and the start."""

    def __init__(self) -> None:
        self._gradient: Floats | None = None
        self._change: Floats | None = None
        self._start: Floats | None = None

    def follow(self, gradient: Partials, weight: Partials, new_change: Floats) -> dict[str, Floats]:
        offsets = gradient.offsets
        new_gradient, new_weight = gradient.sketches, weight.sketches
        assert new_gradient is not None
        assert new_weight is not None
        if self._start is None:
            self._start = new_weight - new_change
        start = self._start
        with np.errstate(divide="ignore", invalid="ignore"):
            found = {
                "update_gradient_cosine": -sketches.cosines(new_change, new_gradient, offsets),
                "weight_drift": sketches.distances(new_weight, start, offsets)
                / _positive(sketches.norms(start, offsets)),
                "weight_cosine_to_start": sketches.cosines(new_weight, start, offsets),
            }
            if self._gradient is not None and self._change is not None:
                found["gradient_cosine"] = sketches.cosines(new_gradient, self._gradient, offsets)
                found["update_cosine"] = sketches.cosines(new_change, self._change, offsets)
        self._gradient, self._change = new_gradient, new_change
        return found


def _positive(lengths: Floats) -> Floats:
    return np.where(lengths > 0, lengths, np.nan)


def _statistics(stream: str, measured: Partials) -> dict[str, Floats]:
    return {f"{stream}_{name}": row for name, row in zip(STATISTIC_NAMES, statistics(measured))}


def _layer(path: Any, leaf: Any) -> Layer:
    parts = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
    parts = [part for part in parts if part != "value"] or ["parameter"]  # Flax wraps arrays in objects with a value
    kind = _KINDS.get(parts[-1], LayerKind.PARAMETER)
    group, shape = ".".join(parts[:-1]), tuple(int(size) for size in leaf.shape)
    count = int(np.prod(shape, dtype=np.int64))
    name = ".".join(parts)
    return Layer(name, kind=kind, parameter_count=count, group=group, shape=shape, dtype=str(leaf.dtype))
