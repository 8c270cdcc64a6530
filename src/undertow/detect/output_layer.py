"""Which modules hand the loss its input."""

from __future__ import annotations

from undertow.detect.anatomy import NONE, Anatomy, anatomy_of
from undertow.detect.view import View
from undertow.schema.layers import LayerKind


def output_layers(view: View) -> tuple[int, ...]:
    """The module whose output the loss was given, and the one before it that owns a matrix, where it (a softmax) has
    none. Where the graph of the loss did not show it, the module that ran last.
    """
    anatomy, source = anatomy_of(view.layout), view.scalar("loss_layer")
    if not anatomy.sequence:
        return ()
    last = anatomy.sequence[-1]
    if 0 <= source < view.layout.count and view.layout.layers[int(source)].kind is not LayerKind.EMBEDDING:  # not tied
        owner = int(view.layout.module[int(source)])
        last = _end_of(anatomy, owner) if owner != NONE else last
    feeder = anatomy.feeder(last)
    return (last,) if feeder in (last, NONE) else (last, feeder)


def _end_of(anatomy: Anatomy, owner: int) -> int:
    """The last of the modules without parameters that ran right behind this one, in the same part of the model."""
    part, last = anatomy.layout.path(owner).rpartition(".")[0], owner
    while (behind := anatomy.behind(last)) != NONE and not anatomy.owns(behind):
        if anatomy.layout.path(behind).rpartition(".")[0] != part:
            break
        last = behind
    return last
