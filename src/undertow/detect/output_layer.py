"""Which modules hand the loss its input."""

from __future__ import annotations

from undertow.detect.anatomy import NONE, anatomy_of
from undertow.detect.layout import Layout


def output_layers(layout: Layout) -> tuple[int, ...]:
    """The module that ran last, and the one before it that owns a matrix, where the last one (a softmax) has none."""
    anatomy = anatomy_of(layout)
    if not anatomy.sequence:
        return ()
    last = anatomy.sequence[-1]
    feeder = anatomy.feeder(last)
    return (last,) if feeder in (last, NONE) else (last, feeder)
