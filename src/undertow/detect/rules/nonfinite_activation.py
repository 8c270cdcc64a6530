"""NUM004."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from undertow.detect.condition import Condition
from undertow.detect.engine.batch import FrameBatch
from undertow.detect.engine.view import FrameView
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.wording import name_layers
from undertow.detect.rule import Said, Verdict, Waiting
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class NonfiniteActivation(Waiting):
    """A module puts out NaN or infinity.

    What it sees
    ------------
    The number of NaN and infinite elements in the output of every module, in the steps in which outputs are sampled:
    always the first two, later every now and then. The first module in forward order is named; those after it only
    pass it on. The largest finite value of the module before it is evidence of an overflow.

    Why it is bad
    -------------
    Everything that follows is NaN too: the loss, then every gradient, then every weight.

    When it is wrong
    ----------------
    Masks hold minus infinity by design: where the loss and all gradients of the same step are finite, this is only
    noted. A step that a loss scaler skipped did no harm and is only noted, too. Once a weight is non-finite (NUM003),
    nothing new is said. The counts are exact.

    References
    ----------
    PyTorch documentation, "Numerical accuracy".
    Micikevicius et al., "Mixed Precision Training", 2017 (arXiv 1710.03740).
    """

    code: ClassVar[str] = "NUM004"
    waits_for: ClassVar[frozenset[str]] = frozenset({"activation"})

    def __init__(self) -> None:
        self._conditions = {key: Condition(key) for key in ("output", "skipped", "masked")}
        self._poisoned = False  # a weight is non-finite, so that outputs must be (NUM003)

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        for place in batch.frames_with("weight", first, last)[-1:]:
            self.observe(batch.view(place))
        return ()

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        poisoned, weights = self._poisoned, view.row("weight_nonfinite_count")
        if weights is not None:  # of the weights after this step: this step's outputs were computed before
            self._poisoned = bool((weights > 0).any())
        counts, ids = view.row("activation_nonfinite_count"), view.ids("activation")
        if counts is None or ids is None:
            return ()
        if poisoned:
            return self._conditions["output"].stay()
        bad = counts > 0
        if not bad.any():
            return tuple(verdict for condition in self._conditions.values() for verdict in condition.end())
        hit = _in_order(view, {int(i) for i in ids[bad]})
        key = "skipped" if view.skipped else "output" if _does_harm(view) else "masked"
        numbers = dict(zip(ids.tolist(), counts.tolist(), strict=True))
        ended = [verdict for k, condition in self._conditions.items() if k != key for verdict in condition.end()]
        unseen = _unseen_before(view, hit[0], {int(i) for i in ids[~np.isnan(counts)]})
        held = self._conditions[key].hold(hit[0], lambda: _verdict(view, key, hit, unseen, numbers))
        return (*held, *ended)


def _in_order(view: FrameView, hit: set[int]) -> list[int]:
    """In execution order, containers left out: their output is that of a part."""
    workers = [i for i in structure_of(view.layout).sequence if i in hit]
    return workers or view.layout.in_order(hit)


def _unseen_before(view: FrameView, first: int, seen: set[int]) -> list[int]:
    """Modules that feed this one and were not called as such, their weights used by a function: it may be theirs."""
    layout = view.layout
    by_path = {node.path: node.id for node in layout.graph.nodes if not node.is_merge}
    path_of = {node: path for path, node in by_path.items()}
    before: dict[int, list[int]] = {}
    for source, target in layout.graph.edges:
        before.setdefault(target, []).append(source)
    unseen: list[int] = []
    waiting, met = list(before.get(by_path.get(layout.path(first), -1), ())), set[int]()
    while waiting:
        node = waiting.pop()
        if node in met:
            continue
        met.add(node)
        module = layout.layers.get(path_of.get(node, ""))
        if node not in path_of:  # a place where branches meet
            waiting.extend(before.get(node, ()))
        elif module is not None and module.is_module and module.id not in seen:
            unseen.append(module.id)
    return unseen


def _does_harm(view: FrameView) -> bool:
    loss, gradients = view.frame.scalars.get("loss"), view.row("gradient_nonfinite_count")
    if loss is None and gradients is None:
        return True  # nothing says that it stays where it is
    return (loss is not None and not math.isfinite(loss)) or (gradients is not None and bool((gradients > 0).any()))


def _verdict(view: FrameView, key: str, hit: list[int], unseen: list[int], numbers: dict[int, float]) -> Verdict:
    layout, first = view.layout, hit[0]
    how = f"NaN or infinite elements in its output at step {view.step}; it is the first module that has any"
    evidence = [Evidence("activation_nonfinite_count", layout.path(first), numbers[first], 0.0, how)]
    before = structure_of(layout).before(first)
    largest = view.all_layers("activation_max_abs")
    if before >= 0 and np.isfinite(largest[before]):
        how = "largest output of the module before it"
        evidence.append(Evidence("activation_max_abs", layout.path(before), float(largest[before]), None, how))
    for module in unseen:
        how = f"feeds {layout.path(first)}; its own output was not seen, since a function uses its weights"
        evidence.append(Evidence("activation_nonfinite_count", layout.path(module), None, 0.0, how))
    summary = f"NaN or infinity in the output of {layout.path(first)}"
    if unseen:
        summary += f", or already of {name_layers(layout, unseen)} before it"
    if len(hit) > 1:
        summary += f", and then of {name_layers(layout, hit[1:])}"
    if key == "output":
        # What comes after it has it from there.
        layers, sure = (*unseen, first), 0.8 if unseen else 1.0
        return Verdict(key, True, Severity.CRITICAL, layers, view.step, sure, f"{summary}.", tuple(evidence))
    why = "the loss scaler skipped the step" if key == "skipped" else "neither the loss nor any gradient was touched"
    return Verdict(key, True, Severity.INFO, (first,), view.step, 1.0, f"{summary}; {why}.", tuple(evidence))
