"""Outputs that are NaN or infinite: of which module first, and whether they did any harm."""

import math

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import FrameBatch, FrameView, LayerIndex, Tracker, where
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence


class NonfiniteOutputs(Tracker):
    """Which modules put out NaN or infinity at this step; `is_harmful` where loss or gradients caught it."""

    needs = frozenset({"activation", "weight"})
    wakes_on = where("activation_nonfinite_count", lambda counts: counts > 0)

    def __init__(self) -> None:
        self.is_informed = self.is_harmful = False
        self.weights_are_nonfinite = False  # before this step, so that outputs must be
        self.hit: list[int] = []  # in execution order
        self._weights_after = False

    def follow(self, view: FrameView) -> None:
        self.weights_are_nonfinite = self._weights_after
        self._note_weights(view)
        counts, ids = view.row("activation_nonfinite_count"), view.ids("activation")
        self.is_informed = counts is not None and ids is not None
        if counts is None or ids is None:
            return
        bad = counts > 0
        self.hit = _in_order(view.layout, {int(i) for i in ids[bad]}) if bad.any() else []
        self.is_harmful = not view.skipped and _reached_loss_or_gradients(view)

    def skip(self, batch: FrameBatch, first: int, last: int) -> None:
        for place in batch.frames_with("weight", first, last)[-1:]:
            self._note_weights(batch.view(place))

    def _note_weights(self, view: FrameView) -> None:
        weights = view.row("weight_nonfinite_count")
        if weights is not None:  # after this step: its outputs were computed before
            self._weights_after = bool((weights > 0).any())

    def describe(self, view: FrameView) -> tuple[str, list[int], tuple[Evidence, ...]]:
        """A sentence without its end, modules that may be the real origin but were not seen, and the evidence."""
        layout, first = view.layout, self.hit[0]
        counts, largest = view.all_layers("activation_nonfinite_count"), view.all_layers("activation_max_abs")
        how = f"NaN or infinite elements in its output at step {view.step}; it is the first module that has any"
        evidence = [Evidence("activation_nonfinite_count", layout.path(first), float(counts[first]), 0.0, how)]
        before = structure_of(layout).before(first)
        if before >= 0 and np.isfinite(largest[before]):
            how = "largest output of the module before it"
            evidence.append(Evidence("activation_max_abs", layout.path(before), float(largest[before]), None, how))
        unseen = _unseen_before(layout, first, counts)
        for module in unseen:
            how = f"feeds {layout.path(first)}; its own output was not seen, since a function uses its weights"
            evidence.append(Evidence("activation_nonfinite_count", layout.path(module), None, 0.0, how))
        sentence = f"NaN or infinity in the output of {layout.path(first)}"
        if unseen:
            sentence += f", or already of {name_layers(layout, unseen)} before it"
        if len(self.hit) > 1:
            sentence += f", and then of {name_layers(layout, self.hit[1:])}"
        return sentence, unseen, tuple(evidence)


def first_nonfinite_output(view: FrameView) -> Evidence | None:
    """The first module in forward order with such an output; none with the value 0; None where no output was seen."""
    counts, ids = view.row("activation_nonfinite_count"), view.ids("activation")
    if counts is None or ids is None or np.isnan(counts).all():
        return None
    bad = view.layout.in_order(ids[counts > 0])
    if not bad:
        how = "no module's output was non-finite in this step: the forward pass was sound"
        return Evidence("activation_nonfinite_count", None, 0.0, 0.0, how)
    number = float(counts[int(np.flatnonzero(ids == bad[0])[0])])
    how = "the first module in forward order whose output was non-finite"
    return Evidence("activation_nonfinite_count", view.layout.path(bad[0]), number, 0.0, how)


def nonfinite_loss(view: FrameView, loss: float) -> tuple[str, tuple[int, ...], tuple[Evidence, ...]]:
    """A sentence without its end, the first module with a non-finite output where outputs were seen, the evidence."""
    sentence = f"The loss turned {'NaN' if math.isnan(loss) else 'infinite'} at step {view.step}"
    evidence = Evidence("loss", None, loss, None, f"the loss of step {view.step} is {loss}")
    output = first_nonfinite_output(view)
    module = None if output is None or output.layer is None else view.layout.layers.get(output.layer)
    if output is None or module is None:
        return sentence, (), (evidence,)
    return sentence, (module.id,), (evidence, output)


def _reached_loss_or_gradients(view: FrameView) -> bool:
    loss, gradients = view.frame.scalars.get("loss"), view.row("gradient_nonfinite_count")
    if loss is None and gradients is None:
        return True  # nothing says that it stays where it is
    return (loss is not None and not math.isfinite(loss)) or (gradients is not None and bool((gradients > 0).any()))


def _in_order(layout: LayerIndex, hit: set[int]) -> list[int]:
    """In execution order, containers left out: their output is that of a part."""
    return [i for i in structure_of(layout).sequence if i in hit] or layout.in_order(hit)


def _unseen_before(layout: LayerIndex, first: int, counts: NDArray[np.float32]) -> list[int]:
    """Modules that feed this one and were not called as such, their weights used by a function: it may be theirs."""
    path_of = {node.id: node.path for node in layout.graph.nodes if not node.is_merge}
    before: dict[int, list[int]] = {}
    for source, target in layout.graph.edges:
        before.setdefault(target, []).append(source)
    waiting = [i for node, path in path_of.items() if path == layout.path(first) for i in before.get(node, ())]
    unseen: list[int] = []
    met: set[int] = set()
    while waiting:
        node = waiting.pop()
        if node in met:
            continue
        met.add(node)
        module = layout.layers.get(path_of.get(node, ""))
        if node not in path_of:  # a place where branches meet
            waiting.extend(before.get(node, ()))
        elif module is not None and module.is_module and np.isnan(counts[module.id]):
            unseen.append(module.id)
    return unseen
