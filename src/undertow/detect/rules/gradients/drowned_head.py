"""GRD009: the loss of one head drowns that of another."""

import numpy as np

from undertow.detect.engine import Condition, Flags, FrameBatch, FrameView, Judgement, LayerIndex, Limit, Stage, Wake
from undertow.detect.features.matrices import Values
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.remedies import BALANCE_THE_TERMS, USE_LARGER_BATCHES
from undertow.schema import Evidence, Severity


def _with_several_heads(batch: FrameBatch) -> Flags:
    out = batch.none()
    if len(batch.layout.derived(_heads)) > 1:
        out[batch.frames_with("gradient")] = True
    return out


class DrownedHead(Condition):
    """Several heads share layers, and the loss of one drowns that of another.

    What it sees: Outputs of the model that share layers before them, and how much the loss depends on each: the
        gradient norm of its weight times the weight's norm. Reported when, from the first steps on, one of them stays
        three thousand times behind the largest at every measured step.
    Why it is bad: The shared layers learn the largest term only. The small one looks as if it were trained, since its
        own head is.
    When it is wrong: A term may be tiny on purpose, as an auxiliary loss that only steadies training. A head that has
        learnt its task has a small gradient too, which is why only the first steps count.
    References: Chen et al., "GradNorm: Gradient Normalization for Adaptive Loss Balancing in Deep Multitask
        Networks", 2018 (arXiv 1711.02257).
    """

    code, variant, formerly = "GRD009", "drowned-head", "drowned conflict conflicting-losses"
    places = ("total", "loss")
    stage = Stage.STEP
    meaning = "One part of the loss is learnt at the cost of the others"
    remedies = (BALANCE_THE_TERMS, USE_LARGER_BATCHES)
    wakes_on = Wake(_with_several_heads)

    times = Limit(3_000.0, "times behind the largest, in gradient norm × weight norm; healthy heads: a factor of 100")
    patience = Limit.chance(5, "measured steps, from the first on")
    first_steps = Limit.start(20, "steps: what a head was like later says nothing, it may have learnt its task")
    most_heads = Limit(16, "heads; more are no heads of tasks, but outputs of an ensemble or a detector")

    def __init__(self) -> None:
        self._behind, self._since = 0, -1  # measured steps, from the first on, and the first of them
        self._is_heard = False  # no head was far behind at some step: what shrinks later has learnt its task
        self._latest: tuple[list[int], Values] | None = None  # heads, and how much the loss depends on each

    @property
    def is_calm(self) -> bool:
        return self._latest is None and not self.is_open

    def observe(self, view: FrameView) -> Judgement | None:
        if view.skipped:
            return None
        heads = view.layout.derived(_heads)
        if view.ids("gradient") is None:
            return self._wait(view)
        if len(heads) < 2 or view.ids("weight") is None:
            return self.stay()
        pull = view.all_layers("gradient_norm")[heads].astype(np.float64) * view.all_layers("weight_norm")[heads]
        if not (np.isfinite(pull) & (pull > 0)).all():
            return self.stay()  # a head that had no part in this step
        if not (pull * self.times < pull.max()).any():
            if not self.is_open:
                self._is_heard, self._latest = True, None
            return self.end()
        if self._is_heard:
            return self.stay()
        if not self._behind and view.step >= self.first_steps:
            self._is_heard = True  # what the first steps were like is not known
            return None
        self._since = view.step if not self._behind else self._since
        self._behind += 1
        self._latest = heads, pull
        return self.stay() if self._behind < self.patience else self._judge(view, heads, pull)

    def _wait(self, view: FrameView) -> Judgement | None:
        """Where gradients are measured rarely, two of the first steps will do."""
        is_too_soon = self._behind < 2 or view.step < self.first_steps
        if self.is_open or self._latest is None or is_too_soon or self._is_heard:
            return self.stay()
        return self._judge(view, *self._latest)

    def _judge(self, view: FrameView, heads: list[int], pull: Values) -> Judgement:
        largest = float(pull.max())
        behind = {head: float(value) for head, value in zip(heads, pull) if value * self.times < largest}
        loudest = view.layout.path(heads[int(pull.argmax())])
        return self.hold((*behind,), lambda: self._describe(view.layout, behind, loudest, largest))

    def _describe(self, layout: LayerIndex, behind: dict[int, float], loudest: str, largest: float) -> Judgement:
        evidence = tuple(
            Evidence("gradient_norm", layout.path(head), value, largest,
                     f"gradient norm times weight norm, against that of {loudest}")
            for head, value in behind.items()
        )  # fmt: skip
        first = next(iter(behind))
        summary = (
            f"The loss of {layout.path(first)} is drowned: its gradient in the shared layers is "
            f"{largest / behind[first]:,.0f} times smaller than that of {loudest}."
        )
        return Judgement(Severity.MODERATE, (*behind,), self._since, 0.7, summary, evidence)


def _heads(layout: LayerIndex) -> list[int]:
    """The weight of every module that feeds no other and shares a module before it with another such one."""
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
    if len(weights) > DrownedHead.most_heads:
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
