"""DAT001."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.layer_index import LayerIndex
from undertow.detect.engine.view import FrameView
from undertow.detect.features.module_structure import NONE, structure_of
from undertow.detect.input_shift import InputShift
from undertow.detect.rule import Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity

_OF_INPUTS = frozenset({"activation", "input_std"})


class BadlyScaledInputs:
    """The numbers that enter the model are far from the scale it is made for.

    What it sees
    ------------
    Mean, deviation and largest value of the data that enter the first operation with parameters, at two sampled
    steps in a row: a root mean square above 25, a mean far larger than the deviation, or nothing above 0.005.
    Models that normalise their input, or right behind their first layer with no way around it, are not judged, nor are
    data that were fine at five sampled steps: when those turn odd, it is a matter of single batches (DAT002). But where
    the outputs of the first matrix change fivefold from one look to the next and stay so, with hardly another weight,
    and the loss rises with them, the data have changed for good.

    Why it is bad
    -------------
    Initialisation, learning rates and activation functions all expect inputs of about one. Large inputs saturate or
    kill the units of the first layer and make its gradient dwarf all others; a large common offset leaves a long,
    narrow valley to descend; tiny inputs drown in the biases.

    When it is wrong
    ----------------
    Standardised inputs, pixels between 0 and 1, one-hot rows, waveforms and log-spectra lie well within the limits. A
    first layer that is initialised for raw inputs would be healthy, and is very rare.

    References
    ----------
    LeCun et al., "Efficient BackProp", 1998, section 4.3.
    """

    code: ClassVar[str] = "DAT001"

    def __init__(self) -> None:
        self._layout: LayerIndex | None = None
        self._first = NONE
        self._protected = True
        self._odd = 0  # sampled steps in a row
        self._usual = 0  # sampled steps
        self._since = 0
        self._condition = Condition("inputs")
        self._shift = InputShift()

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    @property
    def resting(self) -> bool:
        return not self._shift.follows

    def news(self, batch: FrameBatch) -> Flags:
        if not self._shift.knows(batch.layout):
            return np.ones(len(batch), bool)
        return batch.with_any(_OF_INPUTS)

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        return ()

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        return (*self._observe_scale(view), *self._shift.observe(view))

    def _observe_scale(self, view: FrameView) -> tuple[Verdict, ...]:
        deviation = view.scalar("input_std")
        if math.isnan(deviation):
            return ()
        if view.layout is not self._layout:
            self._look(view.layout)
        if self._protected:
            return ()
        mean, largest = view.scalar("input_mean"), view.scalar("input_max_abs")
        size = math.hypot(mean, deviation)
        if size > limit.LARGE_INPUT:
            fault = "large"
        elif abs(mean) > max(limit.OFFSET_INPUT * deviation, 3.0):
            fault = "offset"
        elif 0 < largest < limit.SMALL_INPUT:
            fault = "small"
        else:
            self._odd = 0
            self._usual += 1
            return self._condition.end()
        if self._usual >= limit.INPUTS_USUAL:  # what was fine for so long is scaled; something else has happened
            return self._condition.stay()
        if self._odd == 0:
            self._since = view.step
        self._odd += 1
        if self._odd < limit.INPUT_FRAMES:
            return ()
        return self._condition.hold(fault, lambda: self._verdict(view, fault, mean, deviation, largest))

    def _look(self, layout: LayerIndex) -> None:
        """The layer that the data enter; embeddings take indices, and a normalisation takes any scale."""
        self._layout = layout
        structure = structure_of(layout)
        owners = [i for i in structure.sequence if structure.matrix[i] != NONE or structure.is_norm[i]]
        self._first = owners[0] if owners else NONE
        normalised = structure.is_normalised(self._first) and not _goes_around(layout, self._first)
        self._protected = self._first == NONE or bool(structure.is_norm[self._first]) or normalised

    def _verdict(self, view: FrameView, fault: str, mean: float, deviation: float, largest: float) -> Verdict:
        first = view.layout.path(self._first)
        words = {
            "large": f"are far too large (mean {mean:.3g}, deviation {deviation:.3g})",
            "offset": f"lie far from zero (mean {mean:.3g}, deviation {deviation:.3g})",
            "small": f"are tiny (none above {largest:.2g})",
        }[fault]
        summary = f"The inputs of {first} {words}: they are not scaled."
        evidence = [
            Evidence("input_std", first, deviation, 1.0, "deviation of the data that enter the model"),
            Evidence("input_mean", first, mean, 0.0, "mean of the data that enter the model"),
        ]
        output = float(view.all_layers("activation_std")[self._first])
        if math.isfinite(output):
            evidence.append(Evidence("activation_std", first, output, 1.0, "deviation of the first layer's output"))
        severity = Severity.MODERATE if fault == "small" else Severity.SEVERE
        return Verdict("inputs", True, severity, (self._first,), self._since, 0.93, summary, (*evidence,))


def _goes_around(layout: LayerIndex, first: int) -> bool:
    """Does what the first layer puts out also go elsewhere than into a normalisation, as in a residual stream?"""
    path_of = {node.id: node.path for node in layout.graph.nodes}
    behind = {target for source, target in layout.graph.edges if path_of.get(source) == layout.path(first)}
    return any(not _is_norm(layout, path_of.get(node, "")) for node in behind)


def _is_norm(layout: LayerIndex, path: str) -> bool:
    layer = layout.layers.get(path)
    return layer is not None and bool(structure_of(layout).is_norm[layer.id])
