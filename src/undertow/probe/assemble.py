"""From readings to frames: statistics, and what sketches tell about directions.

Runs in the background thread, over all frames that have come in since the last time at once: for a small model
the cost of a frame is the number of numpy calls, so they are shared.
"""

import functools
import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.measure import sketches
from undertow.measure.partials import Partials
from undertow.measure.statistics import statistics
from undertow.probe.directions import Directions
from undertow.probe.histogram_frames import histograms, is_histogram_frame
from undertow.probe.reading_batch import Mask, Placed, ReadingBatch, Row, Values, dense, exposed_mask, runs
from undertow.probe.readings import RanksApart, RawFrame, factor_now, host, is_lost, number
from undertow.probe.signals.signal_assembler import SignalAssembler
from undertow.probe.watched_layers import SlotLayout
from undertow.schema import Block, Frame
from undertow.schema.quantities import (
    ACTIVATION,
    FLOW,
    GRADIENT,
    RANK,
    SKETCH,
    STATISTIC_NAMES,
    STORED_SKETCH_WIDTH,
    UPDATE,
    WEIGHT,
    GradientState,
    Stream,
)

_ACTIVITY_WINDOW = 20  # sampled frames over which a unit must stay silent to be called dead…
_LOST_FRAMES = 4  # …or so few, when it spoke in nearly all of as many or more before
_LOST_SPOKE = 0.75
_SKETCH_EVERY = 64  # gradient frames between two stored sketches
_MOST_BYTES = 24 << 20  # of readings handled together: much more would fall out of the processor's cache
_ROW = {name: row for row, name in enumerate(STATISTIC_NAMES)}
_STEPPED = ("norm", "max_abs", "nonfinite_count")

Blocks = list[dict[str, Block]]


class Assembler:
    def __init__(self) -> None:
        self._layout: SlotLayout | None = None
        self._gradient_frames = 0
        self._activity: dict[int, deque[NDArray[np.uint8]]] = {}
        self._signals = SignalAssembler()

    @property
    def seconds_per_loss(self) -> float:
        """What the numbers of one loss take this thread."""
        return self._signals.seconds_per_loss

    def frames(self, raws: Sequence[RawFrame], sequence: int) -> list[Frame]:
        """The frames of these readings, numbered from `sequence` on."""
        out: list[Frame] = []
        for batch in _batches(raws):
            anew = self._use(batch[0].layout)
            scalars = [_numbers(raw) for raw in batch]
            if anew:
                scalars[0] |= {"another_training": 1.0, "layers_reused": 1.0}
            blocks: Blocks = [{} for _ in batch]
            self._fill(batch, scalars, blocks)
            first = len(out)
            for raw, values, found in zip(batch, scalars, blocks):
                out.append(Frame(sequence + len(out), raw.step, raw.time, values, found))
            self._signals.complete(batch, out[first:])
        return out

    def _fill(self, raws: list[RawFrame], scalars: list[dict[str, float]], blocks: Blocks) -> None:
        slots = len(raws[0].layout.sizes)
        exposed = exposed_mask(raws, slots)
        with_gradient = [place for place, raw in enumerate(raws) if raw.has_gradient]
        with_weights = [place for place, raw in enumerate(raws) if raw.weights]
        gradients, weights = (
            _read(raws, with_gradient, exposed, "gradients"),
            _read(raws, with_weights, exposed, "weights"),
        )
        weight_values = None if weights is None else weights.statistics()
        placed = Placed(gradients, with_gradient), Placed(weights, with_weights)
        found: dict[str, Values] = {}
        if gradients is not None or weights is not None:
            norms = None if weight_values is None else weight_values[:, _ROW["norm"]]
            found = self._directions.follow(raws, *placed, norms)
        if gradients is not None:
            chosen = [raws[place] for place in with_gradient]
            self._gradients(chosen, gradients, found, with_gradient, exposed[with_gradient], scalars, blocks)
        if weights is not None and weight_values is not None:
            self._weights(weights, weight_values, found, with_weights, blocks)
        with_histograms: list[int] = []
        for place, raw in enumerate(raws):
            if raw.modules:
                blocks[place]["activation"] = self._activations(raw)
            if raw.flow is not None and len(raw.flow.ids):
                blocks[place][FLOW.name] = Block(FLOW.name, raw.flow.ids, raw.flow.values())
            if raw.apart is not None:
                self._apart(raw.apart, place, blocks)
            if raw.has_gradient:
                if self._gradient_frames % _SKETCH_EVERY == 0:
                    blocks[place]["sketch"] = self._stored_sketches(*(kind.row(place) for kind in placed))
                if is_histogram_frame(self._gradient_frames):
                    with_histograms.append(place)
                self._gradient_frames += 1
        for place, block in histograms(raws[0].layout, with_histograms, *placed).items() if with_histograms else ():
            blocks[place][block.stream] = block

    def _apart(self, apart: RanksApart, place: int, blocks: Blocks) -> None:
        layout = self._layout
        assert layout is not None
        canvas = _Canvas(RANK, layout.parameter_ids, layout.row_of_slot, 1)
        for name, values in zip(RANK.names, (apart.weight, apart.gradient, apart.farthest)):
            canvas.put_at(0, name, values)
        canvas.finish([place], blocks)

    def _use(self, layout: SlotLayout) -> bool:
        """True when layers stand for other models from now on: nothing that is known of them is of these."""
        anew = self._layout is not None and layout.generation != self._layout.generation
        if layout is not self._layout:
            directions, before, activity = Directions(layout), self._layout, self._activity
            if before is not None and not anew:
                directions.recall(self._directions)
            there = set() if anew else set(layout.module_ids.tolist())
            self._activity = {layer: units for layer, units in activity.items() if layer in there}
            self._layout, self._directions = layout, directions
        return anew

    # -- gradients ----------------------------------------------------------------------------------------

    def _gradients(
        self,
        raws: list[RawFrame],
        read: ReadingBatch,
        found: dict[str, Values],
        places: list[int],
        exposed: Mask,
        scalars: list[dict[str, float]],
        blocks: Blocks,
    ) -> None:
        layout = raws[0].layout
        canvas = _Canvas(GRADIENT, layout.parameter_ids, layout.row_of_slot, len(raws))
        values = read.statistics()
        canvas.put_statistics(values)
        for name in _STEPPED:
            canvas.put(f"stepped_gradient_{name}", values[:, _ROW[name]])
        changed = [place for place, raw in enumerate(raws) if raw.stepped is not None]
        if changed:
            stepped = dense([raws[place].stepped or [] for place in changed], layout, exposed[changed])
            again = stepped.statistics()
            for name in _STEPPED:
                canvas.update(f"stepped_gradient_{name}", changed, again[:, _ROW[name]], stepped.present)
        manual = [place for place, raw in enumerate(raws) if raw.is_manual]
        for name in _STEPPED if manual else ():
            canvas.blank(f"stepped_gradient_{name}", manual)
        canvas.put("gradient_cosine", found["gradient_cosine"][places])
        flags = np.full((3, *exposed.shape), np.nan, np.float32)
        for place, alike in runs(raws, "exposed", "state", "carried", "optimizer"):
            state, raw = flags[:, place : place + len(alike)], alike[0]
            state[:, :, raw.exposed] = np.array((raw.state, raw.carried, raw.optimizer))[:, None]
        for line, name in enumerate(("gradient_state", "gradient_carried", "gradient_optimizer")):
            canvas.put(name, flags[line])
        # Clipping concerns the optimizer's own tensors: those that no optimizer holds are not stepped.
        held = (flags[2] >= 0) & (flags[0] == GradientState.PRESENT)
        totals = _lengths(canvas.get("gradient_norm"), held).tolist()
        stepped_totals = _lengths(canvas.get("stepped_gradient_norm"), held).tolist()
        for place in np.flatnonzero(held.any(axis=1)).tolist():
            before, after, numbers = totals[place], stepped_totals[place], scalars[places[place]]
            numbers["gradient_norm_total"] = before
            if 0 < before < math.inf and math.isfinite(after) and not raws[place].is_manual:
                numbers["clip_coefficient"] = after / before if raws[place].stepped is not None else 1.0
        for place, raw in enumerate(raws):
            if raw.noise is not None:
                canvas.put_at(place, "gradient_noise_scale", raw.noise)
            elif raw.micro_gradients and not raw.carried.any():
                canvas.put_at(place, "gradient_noise_scale", _noise(raw))
        canvas.finish(places, blocks)

    # -- weights and updates ------------------------------------------------------------------------------

    def _weights(
        self, read: ReadingBatch, values: Values, found: dict[str, Values], places: list[int], blocks: Blocks
    ) -> None:
        layout = self._layout
        assert layout is not None
        canvas = _Canvas(WEIGHT, layout.parameter_ids, layout.row_of_slot, len(places))
        canvas.put_statistics(values)
        for name in ("weight_drift", "weight_cosine_to_start") if read.has_sketches else ():
            canvas.put(name, found[name][places])
        canvas.finish(places, blocks)
        if read.has_sketches:
            canvas = _Canvas(UPDATE, layout.parameter_ids, layout.row_of_slot, len(places))
            for name in UPDATE.names:
                canvas.put(name, found[name][places])
            canvas.finish(places, blocks)

    def _stored_sketches(self, *rows: Row | None) -> Block:
        """Once in a while the directions themselves are kept, folded, for analyses across distant steps."""
        layout, width = self._layout, STORED_SKETCH_WIDTH
        assert layout is not None
        out = np.full((len(rows), len(layout.parameter_ids), width), np.nan, np.float32)
        for line, row in enumerate(rows):
            if row is not None:
                folded = sketches.fold(row.sketches, layout.offsets, width)
                out[line, layout.row_of_slot[row.present]] = folded[row.present]
        return Block(SKETCH.name, layout.parameter_ids, out.reshape(len(rows), -1))

    # -- activations --------------------------------------------------------------------------------------

    def _activations(self, raw: RawFrame) -> Block:
        layout = raw.layout
        row_of = {layer_id: row for row, layer_id in enumerate(layout.module_ids.tolist())}
        readings = [(row_of[layer], layer, one) for layer, one in raw.modules.items() if layer in row_of]
        values = np.full((len(ACTIVATION.quantities), len(row_of)), np.nan, np.float32)

        def put(name: str, rows: int | list[int], value: float | Values) -> None:
            values[_ACTIVATION_LINE[name], rows] = value

        with np.errstate(over="ignore"):
            for row, layer_id, reading in readings:
                if reading.is_measured:
                    put("activation_calls", row, reading.calls)
                if reading.active_units:
                    put("activation_dead_fraction", row, self._dead_fraction(layer_id, reading.active_units))
                if reading.saturated:
                    shares = [number(share) for share in reading.saturated]
                    put("activation_saturated_fraction", row, float(np.mean(shares)))
            rows, outputs = _together([(row, one.outputs) for row, _, one in readings])
            if rows:
                for name in ("mean", "std", "max_abs", "zero_fraction", "nonfinite_count"):
                    put(f"activation_{name}", rows, outputs[_ROW[name]])
            factor = factor_now(raw.output_gradient_factor)
            rows, gradients = _together([(row, one.output_gradients) for row, _, one in readings], factor)
            if rows:
                put("output_gradient_norm", rows, gradients[_ROW["norm"]])
                put("output_gradient_nonfinite_count", rows, gradients[_ROW["nonfinite_count"]])
        return Block(ACTIVATION.name, layout.module_ids, values)

    def _dead_fraction(self, layer_id: int, active: list[NDArray[np.uint8]]) -> float:
        """The share of units that were silent in all frames of the window, or spoke in most and fell silent."""
        width = len(active[0])
        window = self._activity.setdefault(layer_id, deque(maxlen=_ACTIVITY_WINDOW))
        window.append(np.maximum.reduce([units for units in active if len(units) == width]))
        alike = [units for units in window if len(units) == width]
        dead = np.maximum.reduce(alike) == 0
        before, recent = alike[:-_LOST_FRAMES], alike[-_LOST_FRAMES:]
        if len(before) >= _LOST_FRAMES:
            spoke = np.mean([units > 0 for units in before], axis=0) >= _LOST_SPOKE
            dead |= spoke & (np.maximum.reduce(recent) == 0)
        return float(dead.mean())


_ACTIVATION_LINE = {name: line for line, name in enumerate(ACTIVATION.names)}


class _Canvas:
    """Blocks of one stream being filled, one per frame; NaN where nothing was measured."""

    def __init__(self, stream: Stream, layer_ids: NDArray[np.int32], rows: NDArray[np.int64], frames: int) -> None:
        self._stream, self._ids = stream, layer_ids
        self._rows = slice(None) if np.array_equal(rows, np.arange(len(layer_ids))) else rows
        self._values = np.full((frames, len(stream.quantities), len(layer_ids)), np.nan, np.float32)
        self._line = {name: line for line, name in enumerate(stream.names)}

    def put(self, name: str, values: NDArray[np.floating]) -> None:
        with np.errstate(over="ignore"):
            self._values[:, self._line[name], self._rows] = values

    def put_at(self, frame: int, name: str, values: Values) -> None:
        with np.errstate(over="ignore"):
            self._values[frame, self._line[name], self._rows] = values

    def blank(self, name: str, frames: list[int]) -> None:
        self._values[frames, self._line[name]] = np.nan

    def update(self, name: str, frames: list[int], values: Values, which: Mask) -> None:
        for place, row, chosen in zip(frames, values, which):
            self.put_at(place, name, np.where(chosen, row, self.get(name)[place]))

    def put_statistics(self, values: Values) -> None:
        with np.errstate(over="ignore"):
            self._values[:, : len(STATISTIC_NAMES), self._rows] = values

    def get(self, name: str) -> NDArray[np.float32]:
        """frames × slots."""
        return self._values[:, self._line[name], self._rows]

    def finish(self, places: list[int], blocks: Blocks) -> None:
        for place, values in zip(places, self._values):
            blocks[place][self._stream.name] = Block(self._stream.name, self._ids, values)


def _batches(raws: Sequence[RawFrame]) -> Iterator[list[RawFrame]]:
    """Consecutive frames of one layout, of a bounded size."""
    for _, alike in itertools.groupby(raws, key=lambda raw: id(raw.layout)):
        batch: list[RawFrame] = []
        size = 0
        for raw in alike:
            if batch and size > _MOST_BYTES:
                yield batch
                batch, size = [], 0
            batch.append(raw)
            size += raw.nbytes
        yield batch


def _numbers(raw: RawFrame) -> dict[str, float]:
    numbers = {name: value if type(value) is float else number(value) for name, value in raw.scalars.items()}
    if is_lost(numbers.get("loss_scale", 1.0)):
        numbers.pop("loss", None)
    return numbers


def _read(raws: list[RawFrame], places: list[int], exposed: Mask, kind: str) -> ReadingBatch | None:
    """All readings of one kind, of the frames that have any."""
    if not places:
        return None
    of_kind = attrgetter(kind)
    return dense([of_kind(raws[place]) for place in places], raws[0].layout, exposed[places])


def _noise(raw: RawFrame) -> Values:
    """Micro-batch gradients are differences of what had accumulated by the end of each backward pass."""
    slots = len(raw.layout.sizes)
    read = dense(raw.micro_gradients, raw.layout, np.ones((len(raw.micro_gradients), slots), np.bool_))
    offsets, count = raw.layout.offsets, len(raw.micro_gradients)
    rows = [row.sketches for row in map(read.row, range(count)) if row is not None]
    if len(rows) < count:
        return np.full(slots, np.nan)
    each, mean = np.diff(np.stack([np.zeros_like(rows[0]), *rows]), axis=0), rows[-1] / count
    variance = (sketches.norms(each - mean, offsets) ** 2).sum(axis=0) / (count - 1)
    signal = sketches.norms(mean, offsets) ** 2 - variance / count
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(signal > 0, variance / signal, np.where(variance > 0, np.inf, np.nan))
    shown = read.present.all(axis=0)
    shown &= np.isin(np.arange(slots), raw.exposed)
    return np.where(shown, scale, np.nan)


def _lengths(norms: NDArray[np.float32], which: Mask) -> Values:
    """The norm of each frame's chosen tensors taken together."""
    return np.sqrt(np.where(which, np.square(norms, dtype=np.float64), 0.0).sum(axis=1))


def _together(lists: list[tuple[int, list[Any]]], factor: float = 1.0) -> tuple[list[int], Values]:
    """The rows that have readings, and the statistics of each row's readings taken as one tensor."""
    rows = [row for row, parts in lists if parts]
    if not rows:
        return rows, np.empty((len(STATISTIC_NAMES), 0))
    whole = [functools.reduce(Partials.merge, map(host, parts)) for _, parts in lists if parts]
    moments = np.concatenate([partials.moments for partials in whole])
    stacked = Partials(moments, None, None, np.zeros(len(rows) + 1, np.int64))
    return rows, statistics(stacked if factor == 1.0 else stacked.scaled(factor))
