"""From readings to a frame: statistics, and what sketches tell about directions. Runs in the background thread."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from undertow.measure import sketches
from undertow.measure.partials import SKETCH_BUCKETS, Moment, Partials
from undertow.measure.statistics import statistics
from undertow.probe.catalogue import Layout
from undertow.probe.forward import ModuleReading
from undertow.probe.readings import RawFrame, Reading, Slots, host, number
from undertow.schema.frames import Block, Frame
from undertow.schema.quantities import (
    ACTIVATION,
    GRADIENT,
    SKETCH,
    STATISTIC_NAMES,
    STORED_SKETCH_WIDTH,
    UPDATE,
    WEIGHT,
    GradientState,
    Stream,
)

_ACTIVITY_WINDOW = 20  # sampled frames over which a unit must stay silent to be called dead
_SKETCH_EVERY = 64  # gradient frames between two stored sketches
_EXTREMES = STATISTIC_NAMES.index("norm"), STATISTIC_NAMES.index("max_abs"), STATISTIC_NAMES.index("nonfinite_count")

Values = NDArray[np.float64]


class SketchMemory:
    """The last sketch of each slot, packed."""

    def __init__(self, sizes: NDArray[np.int64]) -> None:
        lengths = np.minimum(sizes, SKETCH_BUCKETS)
        self.offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self.values = np.zeros(int(self.offsets[-1]))
        self.known = np.zeros(len(sizes), np.bool_)

    def _places(self, slots: Slots) -> slice | NDArray[np.int64]:
        if len(slots) == len(self.known):
            return slice(None)
        pieces = [np.arange(int(self.offsets[slot]), int(self.offsets[slot + 1])) for slot in slots.tolist()]
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def get(self, slots: Slots) -> Values:
        return self.values[self._places(slots)]

    def put(self, slots: Slots, packed: Values) -> None:
        self.values[self._places(slots)] = packed
        self.known[slots] = True


class Assembler:
    def __init__(self) -> None:
        self._layout: Layout | None = None
        self._gradient_frames = 0
        self._activity: dict[int, deque[NDArray[np.uint8]]] = {}

    def _use(self, layout: Layout) -> None:
        if layout is self._layout:
            return
        old, self._layout = self._layout, layout
        memories = {name: SketchMemory(layout.sizes) for name in ("gradient", "update", "weight", "start")}
        norms = np.full(len(layout.sizes), np.nan)
        if old is not None:  # keep what is known of tensors that are still there
            old_slot = {int(row): slot for slot, row in enumerate(old.row_of_slot)}
            for slot, row in enumerate(layout.row_of_slot.tolist()):
                before = old_slot.get(row)
                if before is None or old.sizes[before] != layout.sizes[slot]:
                    continue
                norms[slot] = self._norm_before[before]
                for name, memory in memories.items():
                    known = self._memories[name]
                    if known.known[before]:
                        memory.put(np.array([slot]), known.get(np.array([before])))
        self._memories = memories
        self._norm_before = norms  # of each weight, after its last measured step

    def frame(self, raw: RawFrame, sequence: int) -> Frame:
        self._use(raw.layout)
        scalars = {name: number(value) for name, value in raw.scalars.items()}
        blocks: dict[str, Block] = {}
        self._fresh_gradient = np.zeros(len(raw.layout.sizes), np.bool_)  # slots whose gradient is of this step
        if raw.has_gradient:
            self._gradient(raw, blocks, scalars)
        if raw.weights:
            self._weights(raw, blocks)
        if raw.modules:
            self._activations(raw, blocks)
        if raw.has_gradient:
            if self._gradient_frames % _SKETCH_EVERY == 0:
                self._stored_sketches(raw, blocks)
            self._gradient_frames += 1
        return Frame(sequence, raw.step, raw.time, scalars, blocks)

    # -- gradients ----------------------------------------------------------------------------------------

    def _gradient(self, raw: RawFrame, blocks: dict[str, Block], scalars: dict[str, float]) -> None:
        block = _Canvas(GRADIENT, raw.layout.parameter_ids)
        rows = raw.layout.row_of_slot
        memory = self._memories["gradient"]
        for reading in raw.gradients:
            slots, partials, offsets = _narrowed(reading, raw.exposed)
            if not len(slots):
                continue
            values = statistics(partials)
            block.put_statistics(rows[slots], values)
            block.put("stepped_gradient_norm", rows[slots], values[_EXTREMES[0]])
            block.put("stepped_gradient_max_abs", rows[slots], values[_EXTREMES[1]])
            block.put("stepped_gradient_nonfinite_count", rows[slots], values[_EXTREMES[2]])
            if partials.sketches is not None:
                cosine = sketches.cosines(partials.sketches, memory.get(slots), offsets)
                block.put("gradient_cosine", rows[slots], np.where(memory.known[slots], cosine, np.nan))
                memory.put(slots, partials.sketches)
                self._fresh_gradient[slots] = True
        for reading in raw.stepped or ():
            slots, partials, _ = _narrowed(reading, raw.exposed)
            values = statistics(partials)
            block.put("stepped_gradient_norm", rows[slots], values[_EXTREMES[0]])
            block.put("stepped_gradient_max_abs", rows[slots], values[_EXTREMES[1]])
            block.put("stepped_gradient_nonfinite_count", rows[slots], values[_EXTREMES[2]])
        # Clipping concerns the optimizer's own tensors: those that no optimizer holds are not stepped.
        held = rows[raw.exposed[(raw.optimizer >= 0) & (raw.state == GradientState.PRESENT)]]
        if len(held):
            total = _length(block.get("gradient_norm")[held])
            stepped = _length(block.get("stepped_gradient_norm")[held])
            scalars["gradient_norm_total"] = total
            if 0 < total < np.inf and np.isfinite(stepped):
                scalars["clip_coefficient"] = stepped / total if raw.stepped is not None else 1.0
        exposed = rows[raw.exposed]
        block.put("gradient_state", exposed, raw.state)
        block.put("gradient_carried", exposed, raw.carried)
        block.put("gradient_optimizer", exposed, raw.optimizer)
        if raw.micro_gradients and not raw.carried.any():
            self._noise(raw, block)
        blocks["gradient"] = block.finish()

    def _noise(self, raw: RawFrame, block: _Canvas) -> None:
        """Micro-batch gradients are differences of what had accumulated by the end of each backward pass."""
        devices = len(raw.micro_gradients[-1])
        for device in range(devices):
            passes = [readings[device] for readings in raw.micro_gradients if len(readings) == devices]
            slots = passes[-1].slots
            if len(passes) < 2 or any(not np.array_equal(one.slots, slots) for one in passes):
                continue
            parts = [host(one.partials).scaled(number(one.factor)) for one in passes]
            packed = [part.sketches for part in parts if part.sketches is not None]
            offsets, count = parts[-1].offsets, len(parts)
            if len(packed) != count:
                continue
            mean = packed[-1] / count
            spread = np.zeros(len(slots))
            before: Values = np.zeros_like(packed[0])
            for accumulated in packed:
                spread += sketches.norms(accumulated - before - mean, offsets) ** 2
                before = accumulated
            variance = spread / (count - 1)
            signal = sketches.norms(mean, offsets) ** 2 - variance / count
            with np.errstate(divide="ignore", invalid="ignore"):
                scale = np.where(signal > 0, variance / signal, np.where(variance > 0, np.inf, np.nan))
            shown = np.isin(slots, raw.exposed)
            block.put("gradient_noise_scale", raw.layout.row_of_slot[slots[shown]], scale[shown])

    # -- weights and updates ------------------------------------------------------------------------------

    def _weights(self, raw: RawFrame, blocks: dict[str, Block]) -> None:
        weight = _Canvas(WEIGHT, raw.layout.parameter_ids)
        update = _Canvas(UPDATE, raw.layout.parameter_ids)
        rows = raw.layout.row_of_slot
        current, start = self._memories["weight"], self._memories["start"]
        if not raw.before_is_previous:
            current.known[:] = False  # weights may have been edited, or not measured, since the last time
        for reading in raw.weights_before:
            partials = host(reading.partials)
            self._norm_before[reading.slots] = np.sqrt(partials.moments[:, Moment.SUM_SQUARE])
            if partials.sketches is not None:
                current.put(reading.slots, partials.sketches)
        for reading in raw.weights:
            slots, partials, offsets = _narrowed(reading, raw.exposed)
            if not len(slots) or partials.sketches is None:
                continue
            values = statistics(partials)
            weight.put_statistics(rows[slots], values)
            after = partials.sketches
            self._moved(slots, after, offsets, current, update, rows)
            first = slots[~start.known[slots]]
            if len(first):
                # Drift counts from before the first measured step when that is known.
                taken = np.where(current.known[first], True, False)
                for slot, known in zip(first.tolist(), taken.tolist()):
                    place = np.array([slot])
                    where = int(np.searchsorted(slots, slot))
                    start.put(place, current.get(place) if known else after[offsets[where] : offsets[where + 1]])
            origin = start.get(slots)
            length = sketches.norms(origin, offsets)
            with np.errstate(divide="ignore", invalid="ignore"):
                drift = np.where(length > 0, sketches.distances(after, origin, offsets) / length, np.nan)
            weight.put("weight_drift", rows[slots], drift)
            weight.put("weight_cosine_to_start", rows[slots], sketches.cosines(after, origin, offsets))
            current.put(slots, after)
            self._norm_before[slots] = values[_EXTREMES[0]]
        blocks["weight"] = weight.finish()
        blocks["update"] = update.finish()

    def _moved(
        self,
        slots: Slots,
        after: Values,
        offsets: NDArray[np.int64],
        current: SketchMemory,
        update: _Canvas,
        rows: NDArray[np.int64],
    ) -> None:
        known = current.known[slots]
        if not known.any():
            return
        change = after - current.get(slots)
        length = np.where(known, sketches.norms(change, offsets), np.nan)
        previous, gradient = self._memories["update"], self._memories["gradient"]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(self._norm_before[slots] > 0, length / self._norm_before[slots], np.nan)
        turn = np.where(known & previous.known[slots], sketches.cosines(change, previous.get(slots), offsets), np.nan)
        fresh = known & self._fresh_gradient[slots]
        descent = np.where(fresh, -sketches.cosines(change, gradient.get(slots), offsets), np.nan)
        update.put("update_norm", rows[slots], length)
        update.put("update_ratio", rows[slots], ratio)
        update.put("update_cosine", rows[slots], turn)
        update.put("update_gradient_cosine", rows[slots], descent)
        moved = slots[known]
        if len(moved) == len(slots):
            previous.put(slots, change)
        else:
            for slot in moved.tolist():
                where = int(np.searchsorted(slots, slot))
                previous.put(np.array([slot]), change[offsets[where] : offsets[where + 1]])

    def _stored_sketches(self, raw: RawFrame, blocks: dict[str, Block]) -> None:
        """Once in a while the directions themselves are kept, folded, for analyses across distant steps."""
        width = STORED_SKETCH_WIDTH
        out = np.full((2, len(raw.layout.parameter_ids), width), np.nan, np.float32)
        for line, name in enumerate(("gradient", "weight")):
            memory = self._memories[name]
            folded = sketches.fold(memory.values, memory.offsets, width)
            known = np.flatnonzero(memory.known)
            out[line, raw.layout.row_of_slot[known]] = folded[known]
        blocks["sketch"] = Block(SKETCH.name, raw.layout.parameter_ids, out.reshape(2, -1))

    # -- activations --------------------------------------------------------------------------------------

    def _activations(self, raw: RawFrame, blocks: dict[str, Block]) -> None:
        block = _Canvas(ACTIVATION, raw.layout.module_ids)
        factor = number(raw.output_gradient_factor)
        for layer_id, reading in raw.modules.items():
            row = raw.layout.row_of_module.get(layer_id)
            if row is not None:
                self._module(block, np.array([row]), layer_id, reading, factor)
        blocks["activation"] = block.finish()

    def _module(
        self, block: _Canvas, row: NDArray[np.int64], layer_id: int, reading: ModuleReading, factor: float
    ) -> None:
        block.put("activation_calls", row, reading.calls)
        if reading.outputs:
            values = statistics(_merged([host(partials) for partials in reading.outputs]))
            for name in ("mean", "std", "max_abs", "zero_fraction", "nonfinite_count"):
                block.put(f"activation_{name}", row, values[STATISTIC_NAMES.index(name)])
        if reading.active_units:
            window = self._activity.setdefault(layer_id, deque(maxlen=_ACTIVITY_WINDOW))
            window.append(
                np.maximum.reduce([u for u in reading.active_units if len(u) == len(reading.active_units[0])])
            )
            alike = [units for units in window if len(units) == len(window[-1])]
            block.put("activation_dead_fraction", row, 1.0 - float(np.maximum.reduce(alike).mean()))
        if reading.saturated:
            block.put(
                "activation_saturated_fraction", row, float(np.mean([number(share) for share in reading.saturated]))
            )
        if reading.output_gradients:
            gradient = _merged([host(partials) for partials in reading.output_gradients]).scaled(factor)
            values = statistics(gradient)
            block.put("output_gradient_norm", row, values[_EXTREMES[0]])
            block.put("output_gradient_nonfinite_count", row, values[_EXTREMES[2]])


class _Canvas:
    """A block being filled, NaN where nothing was measured."""

    def __init__(self, stream: Stream, layer_ids: NDArray[np.int32]) -> None:
        self._stream = stream
        self._ids = layer_ids
        self._values = np.full((len(stream.quantities), len(layer_ids)), np.nan, np.float32)
        self._line = {name: line for line, name in enumerate(stream.names)}

    def put(self, name: str, rows: NDArray[np.int64], values: float | NDArray[np.floating]) -> None:
        with np.errstate(over="ignore"):
            self._values[self._line[name], rows] = values

    def put_statistics(self, rows: NDArray[np.int64], values: Values) -> None:
        with np.errstate(over="ignore"):
            self._values[: len(STATISTIC_NAMES), rows] = values

    def get(self, name: str) -> NDArray[np.float32]:
        return self._values[self._line[name]]

    def finish(self) -> Block:
        return Block(self._stream.name, self._ids, self._values)


def _narrowed(reading: Reading, exposed: Slots) -> tuple[Slots, Partials, NDArray[np.int64]]:
    """The part of a reading that the frame speaks of, on the host and with its factor applied."""
    partials = host(reading.partials)
    factor = number(reading.factor)
    if factor != 1.0:
        partials = partials.scaled(factor)
    keep = np.isin(reading.slots, exposed)
    if keep.all():
        return reading.slots, partials, partials.offsets
    chosen = np.flatnonzero(keep)
    lengths = np.diff(partials.offsets)[chosen]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    packed = None
    if partials.sketches is not None:
        pieces = [partials.sketches[partials.offsets[i] : partials.offsets[i + 1]] for i in chosen.tolist()]
        packed = np.concatenate(pieces) if pieces else np.empty(0)
    exponents = None if partials.exponents is None else partials.exponents[chosen]
    return reading.slots[chosen], Partials(partials.moments[chosen], exponents, packed, offsets), offsets


def _length(norms: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(norms.astype(np.float64)))


def _merged(parts: list[Partials]) -> Partials:
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.merge(part)
    return whole
