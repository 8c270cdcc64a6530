"""GRD009."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from undertow.detect import thresholds
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.layer_index import LayerIndex
from undertow.detect.engine.view import FrameView
from undertow.detect.features.matrices import Values, matrices_of, middle
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.progress import has_learnt
from undertow.detect.rule import Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class ConflictingGradient:
    """Several losses pull on the same layers, and one drowns the others or works against them.

    What it sees
    ------------
    Drowned: outputs of the model that share layers before them (several heads on one trunk), and how much the loss
    depends on each: the gradient norm of its weight times the weight's norm. It speaks when, from the first steps on,
    one of them stays three thousand times behind the largest at every measured step. Conflict: where the losses of a
    step have a backward pass each, two of them, the gradients of the two can be told apart; when they point against
    each other in the middle of all matrices at nearly every measured step and the loss makes no progress, that is
    noted. The terms of a loss that is added up before one backward pass, and acts on one output, cannot be told apart;
    nothing is said of them.

    Why it is bad
    -------------
    The shared layers learn the largest term only. The small one looks as if it were trained, since its own head is.

    When it is wrong
    ----------------
    A term may be tiny on purpose, as an auxiliary loss that only steadies training. A head that has learnt its task has
    a small gradient too, which is why only the first steps count. Adversarial losses oppose each other by design;
    conflict is therefore never more than a remark.

    References
    ----------
    Chen et al., "GradNorm: Gradient Normalization for Adaptive Loss Balancing in Deep Multitask Networks", 2018
    (arXiv 1711.02257).
    Yu et al., "Gradient Surgery for Multi-Task Learning", 2020 (arXiv 2001.06782).
    """

    code: ClassVar[str] = "GRD009"

    def __init__(self) -> None:
        self._drowned, self._conflict = Condition("drowned"), Condition("conflict")
        self._behind = 0  # measured steps, from the first on
        self._is_heard = False  # no head was far behind at some step: what shrinks later has learnt its task
        self._latest: tuple[list[int], Values] | None = None  # heads, and how much the loss depends on each
        self._pairs: deque[tuple[int, bool]] = deque(maxlen=thresholds.CONFLICT_FRAMES)  # (step, against each other)

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    @property
    def resting(self) -> bool:
        return self._latest is None and not (self._drowned.is_open or self._conflict.is_open)

    def news(self, batch: FrameBatch) -> Flags:
        out = batch.scalar("backward_count") == 2
        if len(_heads_of(batch.layout)) > 1:
            out[batch.frames_with("gradient")] = True
        return out

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        return ()

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        if view.skipped:
            return ()
        if view.ids("gradient") is None:
            return self._wait(view)
        return (*self._watch_heads(view), *self._watch_pair(view))

    def _wait(self, view: FrameView) -> tuple[Verdict, ...]:
        """Where gradients are measured rarely, two of the first steps will do."""
        too_soon = self._behind < 2 or view.step < thresholds.DROWNED_STEPS
        if self._drowned.is_open or self._latest is None or too_soon or self._is_heard:
            return self._drowned.stay()
        heads, pull = self._latest
        return self._judge(view, heads, pull)

    def _watch_heads(self, view: FrameView) -> tuple[Verdict, ...]:
        heads = _heads_of(view.layout)
        if len(heads) < 2 or view.ids("weight") is None:
            return self._drowned.stay()
        norms, weights = view.all_layers("gradient_norm"), view.all_layers("weight_norm")
        pull = norms[heads].astype(np.float64) * weights[heads]
        if not (np.isfinite(pull) & (pull > 0)).all():
            return self._drowned.stay()  # a head that had no part in this step
        if not (pull * thresholds.DROWNED < pull.max()).any():
            if not self._drowned.is_open:
                self._is_heard, self._latest = True, None
            return self._drowned.end()
        if self._is_heard:
            return self._drowned.stay()
        if not self._behind and view.step >= thresholds.DROWNED_STEPS:
            self._is_heard = True  # what the first steps were like is not known
            return ()
        self._behind += 1
        self._latest = heads, pull
        if self._behind < thresholds.DROWNED_FRAMES:
            return self._drowned.stay()
        return self._judge(view, heads, pull)

    def _judge(self, view: FrameView, heads: list[int], pull: Values) -> tuple[Verdict, ...]:
        largest = float(pull.max())
        behind = [(head, float(value)) for head, value in zip(heads, pull) if value * thresholds.DROWNED < largest]
        loudest, members = heads[int(pull.argmax())], tuple(head for head, _ in behind)
        return self._drowned.hold(members, lambda: self._drowned_verdict(view, behind, loudest, largest))

    def _drowned_verdict(
        self, view: FrameView, behind: list[tuple[int, float]], loudest: int, largest: float
    ) -> Verdict:
        layout = view.layout
        evidence = tuple(
            Evidence("gradient_norm", layout.path(head), value, largest,
                     f"gradient norm times weight norm, beside that of {layout.path(loudest)}")
            for head, value in behind
        )  # fmt: skip
        head = layout.path(behind[0][0])
        summary = (
            f"What {head} asks of the layers it shares is {largest / behind[0][1]:,.0f} times smaller than what "
            f"{layout.path(loudest)} asks: its loss is drowned."
        )
        layers = tuple(head for head, _ in behind)
        return Verdict(self._drowned.key, True, Severity.MODERATE, layers, 0, 0.7, summary, evidence)

    def _watch_pair(self, view: FrameView) -> tuple[Verdict, ...]:
        """Of two gradients a and b the noise scale is infinite exactly when their scalar product is not positive."""
        matrices = matrices_of(view.layout)
        if view.scalar("backward_count") != 2 or not len(matrices):
            return ()
        scale = middle(matrices.values(view, "gradient_noise_scale"))
        if math.isnan(scale):
            return self._conflict.stay()
        self._pairs.append((view.step, math.isinf(scale)))
        if len(self._pairs) < thresholds.CONFLICT_FRAMES:
            return ()
        against = sum(opposed for _, opposed in self._pairs)
        if against < 0.95 * len(self._pairs) or view.loss is None or view.loss.actors > 1 or has_learnt(view.loss):
            return self._conflict.end()
        return self._conflict.hold(True, lambda: self._conflict_verdict(against))

    def _conflict_verdict(self, against: int) -> Verdict:
        how = f"at {against} of the latest {len(self._pairs)} measured steps the two gradients pointed apart"
        evidence = Evidence("gradient_noise_scale", None, math.inf, None, how)
        summary = "The two losses of every step pull the same layers in opposite directions."
        since = self._pairs[0][0]
        return Verdict(self._conflict.key, True, Severity.MILD, (), since, 0.6, summary, (evidence,))


_known: WeakKeyDictionary[LayerIndex, list[int]] = WeakKeyDictionary()


def _heads_of(layout: LayerIndex) -> list[int]:
    """The weight of every module that feeds no other and shares a module before it with another such one."""
    found: list[int] | None = _known.get(layout)
    if found is None:
        found = _known[layout] = _find_heads(layout)
    return found


def _find_heads(layout: LayerIndex) -> list[int]:
    graph, structure = layout.graph, structure_of(layout)
    before: dict[int, list[int]] = {}
    for source, target in graph.edges:
        before.setdefault(target, []).append(source)
    merges = {node.id for node in graph.nodes if node.is_merge}
    # Losses that are added up meet behind the heads: only what leads to another module is not a head.
    feeding: set[int] = set()
    waiting = [source for source, target in graph.edges if target not in merges]
    while waiting:
        node_id = waiting.pop()
        if node_id not in feeding:
            feeding.add(node_id)
            waiting.extend(before.get(node_id, ()) if node_id in merges else ())
    weights: dict[int, int] = {}
    for node in graph.nodes:
        module = layout.layers.get(node.path)
        if node.is_merge or node.id in feeding or module is None or structure.matrix[module.id] < 0:
            continue
        weight = int(structure.matrix[module.id])
        if layout.is_trainable[weight]:
            weights[node.id] = weight
    if len(weights) > thresholds.DROWNED_MOST_HEADS:
        return []
    above = {node: _all_before(node, before) for node in weights}
    shared = [node for node in weights if any(above[node] & above[other] for other in weights if other != node)]
    return [weights[node] for node in shared]


def _all_before(node: int, before: dict[int, list[int]]) -> set[int]:
    seen: set[int] = set()
    waiting = list(before.get(node, ()))
    while waiting:
        place = waiting.pop()
        if place not in seen:
            seen.add(place)
            waiting.extend(before.get(place, ()))
    return seen
