"""Which modules hand the loss its input."""

from undertow.detect.engine import FrameView
from undertow.detect.features.module_structure import NONE, ModuleStructure, structure_of
from undertow.schema import LayerKind


def output_layers(view: FrameView) -> tuple[int, ...]:
    """The module whose output the loss was given, and the one before it that owns a matrix, where it (a softmax) has
    none. Where the graph of the loss did not show it, the module that ran last.
    """
    structure, source = structure_of(view.layout), view.scalar("loss_layer")
    if not structure.sequence:
        return ()
    last = structure.sequence[-1]
    if 0 <= source < view.layout.count and view.layout.layers[int(source)].kind is not LayerKind.EMBEDDING:  # not tied
        owner = int(view.layout.module[int(source)])
        last = _end_of(structure, owner) if owner != NONE else last
    feeder = structure.feeder(last)
    return (last,) if feeder in (last, NONE) else (last, feeder)


def _end_of(structure: ModuleStructure, owner: int) -> int:
    """The last of the modules without parameters that ran right behind this one, in the same part of the model."""
    part, last = structure.layout.path(owner).rpartition(".")[0], owner
    while (behind := structure.behind(last)) != NONE and not structure.owns(behind):
        if structure.layout.path(behind).rpartition(".")[0] != part:
            break
        last = behind
    return last
