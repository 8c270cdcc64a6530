"""NUM004: a module puts out NaN or infinity."""

import math

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import PART, Condition, FrameView, Judgement, LayerIndex, Stage, where
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.nonfinite_outputs import entered_with_the_data
from undertow.detect.features.remedies import (
    CLEAN_THE_INPUTS,
    FIND_THE_OPERATION,
    GUARD_THE_OPERATION,
    KEEP_VALUES_IN_RANGE,
)
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Severity


class NonfiniteOutput(Condition):
    """A module puts out NaN or infinity.

    What it sees: The number of NaN and infinite elements in the output of every module, at the steps at which outputs
        are sampled: always the first two, later every now and then. The first module in forward order is named; those
        after it only pass it on. The largest finite value of the module before it is evidence of an overflow.
    Why it is bad: Everything that follows is NaN too: the loss, then every gradient, then every weight. Where loss and
        gradients are all finite (masks hold minus infinity by design), or a loss scaler skipped the step, it is a
        remark, never an alarm.
    When it is wrong: The counts are exact. Once a weight is non-finite (NUM003), nothing new is reported. Where a
        function uses the weights of a module before it without calling that module, both are named.
    References: PyTorch documentation, "Numerical accuracy".
        Micikevicius et al., "Mixed Precision Training", 2017 (arXiv 1710.03740).
    """

    code, variant, formerly = "NUM004", "nonfinite-output", "output masked skipped nonfinite-output-without-harm"
    places = ("unsafe",)
    stage, is_exact = Stage.NONFINITE, True
    meaning = "Everything computed from it is NaN too, and so is the loss"
    remedies = (CLEAN_THE_INPUTS, GUARD_THE_OPERATION, KEEP_VALUES_IN_RANGE, FIND_THE_OPERATION)
    needs = frozenset({"activation", "weight"})
    wakes_on = where("activation_nonfinite_count", lambda counts: counts > 0) | where(
        "weight_nonfinite_count", lambda counts: counts > 0
    )

    def __init__(self) -> None:
        self._weights_are_nonfinite = False  # after the latest step, so that outputs of the next one must be

    @property
    def is_calm(self) -> bool:
        return not self.is_open and not self._weights_are_nonfinite

    def observe(self, view: FrameView) -> Judgement | None:
        is_news, weights = not self._weights_are_nonfinite, view.row("weight_nonfinite_count")
        if weights is not None:
            self._weights_are_nonfinite = bool((weights > 0).any())
        counts, ids = view.row("activation_nonfinite_count"), view.ids("activation")
        if counts is None or ids is None:
            return None
        if not is_news:
            return self.stay()
        hit = _in_order(view.layout, {int(i) for i in ids[counts > 0]})
        if not hit:
            return self.end()
        harmless = "neither the loss nor any gradient was touched" if not _reached_loss_or_gradients(view) else ""
        harmless = "the loss scaler skipped the step" if view.skipped else harmless
        return self.hold((hit[0], harmless), lambda: _describe(view, hit, harmless))


def _describe(view: FrameView, hit: list[int], harmless: str) -> Judgement:
    layout, first = view.layout, hit[0]
    counts, largest = view.all_layers("activation_nonfinite_count"), view.all_layers("activation_max_abs")
    is_part = PART in view.frame.blocks  # others before it had their turn at earlier steps
    which = "the first of the modules sampled" if is_part else "the first module"
    how = f"NaN or infinite elements in its output at step {view.step}; it is {which} that has any"
    evidence = [Evidence("activation_nonfinite_count", layout.path(first), float(counts[first]), 0.0, how)]
    before = structure_of(layout).before(first)
    evidence += entered_with_the_data(layout, first)
    if before >= 0 and np.isfinite(largest[before]):
        how = "largest output of the module before it"
        evidence.append(Evidence("activation_max_abs", layout.path(before), float(largest[before]), None, how))
    unseen = _unseen_before(layout, first, counts)
    for module in unseen:
        how = f"feeds {layout.path(first)}; its own output was not measured, since a function uses its weights"
        evidence.append(Evidence("activation_nonfinite_count", layout.path(module), None, 0.0, how))
    summary = f"NaN or infinity in the output of {layout.path(first)}"
    if unseen:
        summary += f", or already of {name_layers(layout, unseen)} before it"
    if len(hit) > 1:
        summary += f", and then of {name_layers(layout, hit[1:])}"
    if harmless:
        return Judgement(Severity.INFO, (first,), view.step, 1.0, f"{summary}; {harmless}.", tuple(evidence))
    confidence = 0.8 if unseen or is_part else 1.0
    return Judgement(Severity.CRITICAL, (*unseen, first), view.step, confidence, f"{summary}.", tuple(evidence))


def _reached_loss_or_gradients(view: FrameView) -> bool:
    loss, gradients = view.frame.scalars.get("loss"), view.row("gradient_nonfinite_count")
    if loss is None and gradients is None:
        return True  # nothing says that it stays where it is
    return (loss is not None and not math.isfinite(loss)) or (gradients is not None and bool((gradients > 0).any()))


def _in_order(layout: LayerIndex, hit: set[int]) -> list[int]:
    """In execution order, containers left out: their output is that of a part. What ran and has no place in the graph
    of the loss made what enters it.
    """
    structure = structure_of(layout)
    placed = [i for i in structure.sequence if i in hit]
    entering = [i for i in sorted(hit) if structure.is_worker[i] and layout.layers[i].order is None]
    return [*entering, *placed] or layout.in_order(hit)


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
