"""How often each layer was measured, and how long it went unseen."""

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine.batch import FrameBatch
from undertow.detect.engine.layer_index import LayerIndex
from undertow.detect.engine.per_layer import LayerValues, PerLayer
from undertow.detect.engine.sampling_rounds import PART
from undertow.detect.engine.view import PLACES
from undertow.schema import StepsPerLayer, StreamCoverage
from undertow.schema.coverage import longest_gap, seen_enough

# Each stream that a verdict rests on, and a number that is there whenever it was measured, be the tensor NaN itself.
_MEASURED = {
    "gradients": "gradient_state",
    "weights": "weight_nonfinite_count",
    "updates": "update_norm",
    "activations": "activation_calls",
    "attention": "attention_entropy",
}
_MOST_NAMED = 20


class CoverageCounter:
    """Counts what every batch of frames measures."""

    def __init__(self) -> None:
        self._sightings = {stream: _Sightings() for stream in _MEASURED}
        self._losses = 0
        self._first = self._last = -1
        self._begun = -1  # the step at which the latest training of the run began

    def grow(self, count: int) -> None:
        for seen in self._sightings.values():
            known = len(seen.counts)
            seen.grow(count)
            seen.last[known:] = self._last

    def begin_anew(self, step: int) -> None:
        """Another training: the layers of the one before may never be seen again, and need not be."""
        self._begun = step
        for seen in self._sightings.values():
            seen.last[:] = step - 1

    def observe(self, batch: FrameBatch) -> None:
        steps = batch.steps
        is_new = np.diff(steps, prepend=self._last) > 0  # optimizers that share a step write a frame each
        if self._first < 0:
            self._first = int(steps[0])
            for seen in self._sightings.values():
                seen.last[:] = self._first - 1
        self._last = int(steps[-1])
        self._losses += int((is_new & batch.with_any(frozenset({"loss"}))).sum())
        for stream, name in _MEASURED.items():
            block = PLACES[name][0]
            if block == "activation" and batch.has(PART):
                self._observe_parts(batch, stream, name)
            elif batch.has(block):
                at = batch.at(block)
                self._sightings[stream].observe(batch.ids(block), ~np.isnan(batch.row(name)), steps[at])

    def _observe_parts(self, batch: FrameBatch, stream: str, name: str) -> None:
        """Where modules are looked at in turn, each counts at its own step, not at the end of the round."""
        for frame in batch.frames:
            block = frame.blocks.get(PART) or frame.blocks.get("activation")
            if block is not None:
                known = ~np.isnan(block.quantity(name))
                self._sightings[stream].observe(block.layer_ids, known[None], np.array([frame.step]))

    def result(self, layout: LayerIndex) -> dict[str, StreamCoverage]:
        """By stream; what does not apply to the model is left out."""
        if self._first < 0:
            return {}
        of = self._last - self._first + 1
        out = {"loss": StreamCoverage(self._losses, of)}
        is_module = np.array([layer.is_module for layer in layout.layers], bool)
        expected = {
            "gradients": ~is_module & layout.is_trainable,
            "weights": ~is_module,
            "updates": ~is_module & layout.is_trainable,
            "activations": is_module & np.isfinite(layout.order),
            "attention": self._sightings["attention"].counts > 0,
        }
        for stream, seen in self._sightings.items():
            layers = np.flatnonzero(expected[stream] | (seen.counts > 0))
            if len(layers):
                out[stream] = seen.result(layers, of, self._last, self._begun, layout)
        return out


class _Sightings(PerLayer):
    """Of the layers of one stream."""

    counts = LayerValues(np.int64, 0)
    last = LayerValues(np.int64, -1)  # the step at which it was last measured, or could first have been
    gap = LayerValues(np.int64, 0)

    def __init__(self) -> None:
        self.steps, self._latest = 0, -1

    def observe(self, ids: NDArray[np.int32], known: NDArray[np.bool_], steps: NDArray[np.int64]) -> None:
        """`known`: (frames × layers) that are measured."""
        measured = steps[known.any(axis=1)]
        if not len(measured):
            return
        self.steps += int((np.diff(measured, prepend=self._latest) > 0).sum())
        self._latest = int(measured[-1])
        before = self.last[ids]
        seen = np.where(known, steps[:, None], before)
        latest = np.maximum.accumulate(np.vstack((before, seen)), axis=0)
        self.gap[ids] = np.maximum(self.gap[ids], (seen - latest[:-1]).max(axis=0))
        self.last[ids] = latest[-1]
        self.counts[ids] += known.sum(axis=0)

    def result(self, layers: NDArray[np.intp], of: int, last: int, begun: int, layout: LayerIndex) -> StreamCoverage:
        counts = self.counts[layers]
        is_over = (counts > 0) & (self.last[layers] < begun)
        gaps = np.maximum(self.gap[layers], np.where(is_over, 0, last - self.last[layers]))
        return StreamCoverage(
            self.steps,
            of,
            StepsPerLayer(int(counts.min()), float(np.median(counts))),
            int(gaps.max()),
            len(layers),
            int(((counts < seen_enough(of)) | (gaps > longest_gap(of))).sum()),
            tuple(layout.path(one) for one in layers[counts == 0][:_MOST_NAMED]),
        )
