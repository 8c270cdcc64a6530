"""The weight matrices of a run in depth order, and what their gradients and updates say together.

Biases, norm scales and embeddings are left out: by symmetry, by design or by sparsity their gradients are small or
large without anything being wrong.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import FrameBatch, LayerIndex
from undertow.detect.engine.view import PLACES, FrameView
from undertow.detect.features.module_structure import structure_of

Values = NDArray[np.float64]

_FEW = 64  # numbers; below this plain Python is faster than numpy


class Matrices:
    """Trainable weight matrices (convolutions and recurrent weights included) by the order of their modules."""

    def __init__(self, layout: LayerIndex) -> None:
        structure = structure_of(layout)
        seen = [int(i) for i in structure.matrices if layout.is_trainable[i] and np.isfinite(layout.module_order[i])]
        chosen = sorted(seen, key=lambda i: (layout.module_order[i], i))
        self.ids: NDArray[np.int64] = np.array(chosen, np.int64)
        sizes = np.array([max(layout.layers[i].parameter_count, 1) for i in chosen], np.float64)
        # The norm a weight of this shape usually starts with. A tensor that starts at zero on purpose (an adapter, a
        # residual branch) has no norm of its own that its first updates could be compared with.
        self.usual_norm: Values = np.sqrt(sizes / (3.0 * structure.fan_in[self.ids]))

        self._count = layout.count

    def __len__(self) -> int:
        return len(self.ids)

    def values(self, view: FrameView, name: str) -> Values:
        """One number per matrix; NaN where this frame has none. Not to be written to: rules share it."""
        stream = PLACES[name][0]
        if stream not in view.frame.blocks:
            return np.full(len(self.ids), np.nan)
        return view.batch.of(view, stream, self.rows(view.batch, name))

    def rows(self, batch: FrameBatch, name: str) -> Values:
        """`values` of all frames of a batch that have the stream, one row each."""

        def work_out() -> Values:
            block = batch.ids(PLACES[name][0])
            place = np.full(self._count, -1, np.int64)
            place[block] = np.arange(len(block))
            places = place[self.ids]
            rows = batch.row(name)[:, places].astype(np.float64)
            rows[:, places < 0] = np.nan
            return rows

        return batch.shared(f"matrices {name}", work_out)

    def middles(self, batch: FrameBatch, name: str) -> Values:
        """The `middle` of each of these rows."""
        is_ratio = name == "update_ratios"
        rows = self.update_rows(batch) if is_ratio else self.rows(batch, name)
        return batch.shared(f"middle {name}", lambda: middles(rows))

    def middle(self, view: FrameView, name: str) -> float:
        """The `middle` of one frame, worked out for all frames beside it; NaN where this frame has none."""
        stream = "update" if name == "update_ratios" else PLACES[name][0]
        if stream not in view.frame.blocks:
            return float("nan")
        return float(view.batch.of(view, stream, self.middles(view.batch, name)))

    def update_rows(self, batch: FrameBatch) -> Values:
        """`update_ratios` of all frames of a batch that have updates, one row each."""

        def work_out() -> Values:
            length = self.rows(batch, "update_norm") / self.usual_norm
            return np.fmin(self.rows(batch, "update_ratio"), length)

        return batch.shared("update_ratios", work_out)

    def update_ratios(self, view: FrameView) -> Values:
        """Length of the update over that of the weight, or over the usual length where the weight is shorter."""
        if "update" not in view.frame.blocks:
            return np.full(len(self.ids), np.nan)
        return view.batch.of(view, "update", self.update_rows(view.batch))


def middle(values: Values) -> float:
    """The median of what is known; NaN when nothing is. Much faster than numpy's on a few numbers."""
    if len(values) > _FEW:
        values = np.sort(values[~np.isnan(values)])
        known: Sequence[float] | Values = values
    else:
        known = sorted([value for value in values.tolist() if value == value])
    count = len(known)
    return 0.5 * float(known[(count - 1) // 2] + known[count // 2]) if count else float("nan")


def middles(values: Values) -> Values:
    """The `middle` of every row."""
    if not values.shape[1]:
        return np.full(len(values), np.nan)
    known = np.sort(values, axis=1)
    count = np.count_nonzero(~np.isnan(known), axis=1)
    row = np.arange(len(known))
    return 0.5 * (known[row, np.maximum(count - 1, 0) // 2] + known[row, np.minimum(count // 2, known.shape[1] - 1)])


def matrices_of(layout: LayerIndex) -> Matrices:
    """The same one for all rules that ask about the same layout."""
    return layout.derived(Matrices)
