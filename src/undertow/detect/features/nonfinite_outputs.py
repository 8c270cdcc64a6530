"""The first module in forward order whose output is NaN or infinite, and whether it was given that."""

import numpy as np

from undertow.detect.engine import PART, FrameView, LayerIndex
from undertow.detect.features.module_structure import NONE, structure_of
from undertow.schema import Evidence


def first_nonfinite_output(view: FrameView) -> Evidence | None:
    """The first module in forward order with such an output; none with the value 0; None where no output was seen."""
    counts, ids = view.row("activation_nonfinite_count"), view.ids("activation")
    if counts is None or ids is None or np.isnan(counts).all():
        return None
    bad = view.layout.in_order(ids[counts > 0])
    if not bad and PART in view.frame.blocks:
        return None
    if not bad:
        how = "no module's output was non-finite in this step: the forward pass was sound"
        return Evidence("activation_nonfinite_count", None, 0.0, 0.0, how)
    number = float(counts[int(np.flatnonzero(ids == bad[0])[0])])
    how = "the first module in forward order whose output was non-finite"
    return Evidence("activation_nonfinite_count", view.layout.path(bad[0]), number, 0.0, how)


def entered_with_the_data(layout: LayerIndex, first: int) -> tuple[Evidence, ...]:
    """Evidence that such a module, whose weights are finite, was given the value: no module comes before it."""
    structure = structure_of(layout)
    if structure.matrix[first] == NONE or structure.before(first) != NONE:
        return ()
    how = "no module comes before it: the value is in its input, from the data or their preprocessing"
    return (Evidence("nonfinite_input", layout.path(first), None, None, how),)
