"""What sketches tell of a frame beside those before it: turns of the gradient, updates, and drift from the start."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from undertow.measure import sketches
from undertow.measure.packed import directions_of_many
from undertow.measure.partials import Moment, offsets_of
from undertow.measure.sketches import Direction
from undertow.probe.reading_batch import Mask, Placed, ReadingBatch, Row, Values, dense
from undertow.probe.readings import RawFrame
from undertow.probe.watched_layers import SlotLayout


class Directions:
    """Remembers the last sketches of every slot of one layout."""

    def __init__(self, layout: SlotLayout) -> None:
        self._layout = layout
        self._gradient, self._change, self._weight, self._start = (SketchMemory(layout.sizes) for _ in range(4))
        self._norm_before: Values = np.full(len(layout.sizes), np.nan)  # of each weight, after its last measured step

    def recall(self, earlier: Directions) -> None:
        """Keep what another layout knew of tensors that are still there."""
        old, new = earlier._layout, self._layout
        slot_before = {layer: slot for slot, layer in enumerate(old.parameter_ids[old.row_of_slot].tolist())}
        for slot, layer in enumerate(new.parameter_ids[new.row_of_slot].tolist()):
            before = slot_before.get(layer)
            if before is None or old.sizes[before] != new.sizes[slot]:
                continue
            self._norm_before[slot] = earlier._norm_before[before]
            mine, theirs = new.stretch(slot), old.stretch(before)
            for name in ("_gradient", "_change", "_weight", "_start"):
                memory, source = getattr(self, name), getattr(earlier, name)
                memory.values[mine] = source.values[theirs]
                memory.squares[slot] = source.squares[before]

    def follow(
        self, raws: Sequence[RawFrame], gradients: Placed, weights: Placed, norms: Values | None
    ) -> dict[str, Values]:
        """The quantities of these frames (frames × slots), NaN where they cannot be known.

        `norms` are those of the weights, measured; sketches only estimate them.
        """
        sums = np.full((len(raws), len(Direction), len(self._layout.sizes)), np.nan)
        remembered = np.full((4, len(raws), len(self._layout.sizes)), np.nan)
        if not self._straight_on(raws, gradients.read, weights.read, norms, sums, remembered):
            measured = dict(zip(weights.places, () if norms is None else norms))
            for place, raw in enumerate(raws):
                rows = gradients.row(place), weights.row(place)
                self._one(raw, *rows, measured.get(place), sums[place], remembered[:, place])
        gradient, change, start, norm_before = remembered
        gradient_square, turn, weight_square, to_start, drift, change_square, change_turn, descent = sums.swapaxes(0, 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            length = np.sqrt(change_square)
            return {
                "gradient_cosine": _cosine(turn, gradient_square, gradient),
                "update_norm": length,
                "update_ratio": np.where(norm_before > 0, length / norm_before, np.nan),
                "update_cosine": _cosine(change_turn, change_square, change),
                "update_gradient_cosine": -_cosine(descent, change_square, gradient_square),
                "weight_drift": np.sqrt(drift / np.where(start > 0, start, np.nan)),
                "weight_cosine_to_start": _cosine(to_start, weight_square, start),
            }

    def _straight_on(
        self,
        raws: Sequence[RawFrame],
        gradients: ReadingBatch | None,
        weights: ReadingBatch | None,
        norms: Values | None,
        sums: Values,
        remembered: Values,
    ) -> bool:
        """The usual case in little time: all frames have everything, and follow each other with nothing in between.

        False, and nothing has happened, where it does not apply.
        """
        if gradients is None or weights is None or norms is None or len(gradients) + len(weights) < 2 * len(raws):
            return False
        memories = (self._gradient, self._change, self._weight, self._start)
        if not all(raw.before_is_previous for raw in raws) or any(np.isnan(one.squares).any() for one in memories):
            return False
        if not (gradients.is_whole and weights.is_whole):
            return False
        change = self._sum_up(gradients, weights, sums)
        if np.isnan(sums).any():  # sketches that overflow: one tensor after the other
            sums.fill(np.nan)
            return False
        for line, before, after in (
            (0, self._gradient.squares, sums[:, Direction.GRADIENT]),
            (1, self._change.squares, sums[:, Direction.CHANGE]),
            (3, self._norm_before, norms),
        ):
            remembered[line, 0], remembered[line, 1:] = before, after[:-1]
        remembered[2] = self._start.squares
        latest_gradient, latest_weight = gradients.row(len(raws) - 1), weights.row(len(raws) - 1)
        assert latest_gradient is not None
        assert latest_weight is not None
        self._gradient.values, self._gradient.squares = latest_gradient.sketches, sums[-1, Direction.GRADIENT].copy()
        self._weight.values, self._weight.squares = latest_weight.sketches, sums[-1, Direction.WEIGHT].copy()
        self._change.values, self._change.squares = change, sums[-1, Direction.CHANGE].copy()
        self._norm_before = norms[-1].copy()
        return True

    def _sum_up(self, gradients: ReadingBatch, weights: ReadingBatch, sums: Values) -> Values:
        """The products of every frame with the one before it; returns the last change of the weights."""
        gradient, weight, change = self._gradient.values, self._weight.values, self._change.values
        if gradients.packed and weights.packed:
            before = (gradient, weight, change, self._start.values)
            return directions_of_many(gradients.packed, weights.packed, sums, *map(np.ascontiguousarray, before))
        offsets = self._layout.offsets
        buffers = np.empty((2, int(offsets[-1])))
        for place, out in enumerate(sums):
            gradient_row, weight_row = gradients.row(place), weights.row(place)
            assert gradient_row is not None
            assert weight_row is not None
            new_gradient, new_weight, new_change = gradient_row.sketches, weight_row.sketches, buffers[place % 2]
            sketches.directions(
                offsets, out, new_change, new_gradient, gradient, new_weight, weight, change, self._start.values
            )
            gradient, weight, change = new_gradient, new_weight, new_change
        return change.copy()

    def _one(
        self,
        raw: RawFrame,
        gradient: Row | None,
        weight: Row | None,
        norms: Values | None,
        sums: Values,
        remembered: Values,
    ) -> None:
        remembered[0], remembered[1] = self._gradient.squares, self._change.squares
        new: Mask | None = None
        change = np.empty(int(self._layout.offsets[-1]))  # left alone without weights, but of a length that fits
        if weight is not None:
            change = np.empty_like(weight.sketches)
            self._know_before(raw)
            new = self._begin(weight)
        sketches.directions(
            self._layout.offsets,
            sums,
            change,
            None if gradient is None else gradient.sketches,
            self._gradient.values,
            None if weight is None else weight.sketches,
            self._weight.values,
            self._change.values,
            self._start.values,
        )
        if gradient is not None:
            _blank(sums, (Direction.GRADIENT, Direction.GRADIENT_TURN, Direction.DESCENT), gradient.present)
            self._gradient.put(gradient.sketches, sums[Direction.GRADIENT], gradient.present)
        if weight is not None and norms is not None:
            changed = (Direction.CHANGE, Direction.CHANGE_TURN, Direction.DESCENT)
            _blank(sums, changed, weight.present & self._weight.known)
            _blank(sums, (Direction.WEIGHT, Direction.TO_START, Direction.DRIFT), weight.present)
            if new is not None:
                self._start.squares = np.where(new, sums[Direction.WEIGHT], self._start.squares)
            remembered[2], remembered[3] = self._start.squares, self._norm_before
            self._change.put(change, sums[Direction.CHANGE], ~np.isnan(sums[Direction.CHANGE]))
            self._weight.put(weight.sketches, sums[Direction.WEIGHT], weight.present)
            self._norm_before = norms if weight.present.all() else np.where(weight.present, norms, self._norm_before)

    def _know_before(self, raw: RawFrame) -> None:
        """The weights before this step: measured then, or those after the step before when nothing came between."""
        if raw.before_is_previous:
            return
        self._weight.forget()
        if not raw.weights_before:
            return
        slots = len(raw.layout.sizes)
        read = dense([raw.weights_before], raw.layout, np.ones((1, slots), np.bool_))
        row = read.row(0)
        if row is not None:
            squares = sketches.norms(row.sketches, self._layout.offsets) ** 2
            self._weight.put(row.sketches, squares, row.present)
            measured = np.sqrt(read.partials(0).moments[:, Moment.SUM_SQUARE])
            self._norm_before = np.where(row.present, measured, self._norm_before)

    def _begin(self, weight: Row) -> Mask | None:
        """Drift counts from before the first measured step when that is known, else from this one.

        Returns the slots that begin with this frame's own weights.
        """
        start = self._start
        if start.known.all():
            return None
        fresh = weight.present & ~start.known
        start.put(self._weight.values, self._weight.squares, fresh & self._weight.known)
        new = fresh & ~self._weight.known
        start.put(weight.sketches, np.zeros(len(new)), new)
        return new


def _blank(sums: Values, rows: tuple[Direction, ...], where_known: Mask) -> None:
    if not where_known.all():
        for row in rows:
            sums[row, ~where_known] = np.nan


def _cosine(product: Values, one: Values, other: Values) -> Values:
    """From sums of products; NaN where either length is zero or not known."""
    lengths = np.sqrt(one) * np.sqrt(other)
    return np.clip(product / np.where(lengths > 0, lengths, np.nan), -1.0, 1.0)


class SketchMemory:
    """Packed sketches by slot, and their squared norms: NaN where none is known."""

    def __init__(self, sizes: NDArray[np.int64]) -> None:
        self.offsets = offsets_of(sizes)
        self.lengths = np.diff(self.offsets)
        self.values: Values = np.zeros(int(self.offsets[-1]))
        self.squares: Values = np.full(len(sizes), np.nan)

    @property
    def known(self) -> Mask:
        return ~np.isnan(self.squares)

    def put(self, packed: Values, squares: Values, which: Mask) -> None:
        """Take the sketches of the chosen slots from a full row."""
        if which.all():
            self.values, self.squares = packed, squares
        elif which.any():
            self.values = np.where(np.repeat(which, self.lengths), packed, self.values)
            self.squares = np.where(which, squares, self.squares)

    def forget(self) -> None:
        self.squares = np.full(len(self.squares), np.nan)
