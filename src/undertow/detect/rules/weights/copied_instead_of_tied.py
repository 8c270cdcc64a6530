"""WGT006: a weight that was meant to be tied was copied."""

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, LayerIndex, Limit, Stage
from undertow.detect.features.initial_weights import InitialWeights, norms_before
from undertow.detect.features.wording import known
from undertow.schema import Evidence, LayerKind, Remedy, Severity

Pair = tuple[int, int]  # an embedding and an output layer of the same shape


class CopiedInsteadOfTied(Condition):
    """An output layer begins as an exact copy of the embedding and is trained apart from it.

    What it sees: An embedding and a matrix of the same shape that are two tensors but have exactly the same norm, at
        the start or when they are first measured together: a tied weight may get its copy in the middle of a training.
    Why it is bad: A copy in place of a tied weight doubles the parameters and breaks what the model assumes. No error
        tells: the two drift apart from the first step on.
    When it is wrong: Starting an output layer as a copy and letting the two part on purpose looks the same, unless the
        two have learning rates of their own: then it is not reported.
    References: Press and Wolf, "Using the Output Embedding to Improve Language Models", 2017 (arXiv 1608.05859).
    """

    code, variant, formerly = "WGT006", "copied-instead-of-tied", "copied"
    places = ("parameter", "initialisation", "definition")
    stage = Stage.COURSE
    meaning = "The model trains two tensors where it was designed for one, and they drift apart"
    remedies = (
        Remedy(
            "tie-the-weights",
            "Let both layers use one tensor, before the optimizer is built.",
            "model.head.weight = model.embedding.weight\noptimizer = $build_call",
            "The model has fewer parameters, and checkpoints of the untied one need care.",
            when_not="The copy is only a start, and the two are meant to part.",
        ),
    )
    needs = frozenset({"weight"})

    same = Limit(2e-6, "relative difference of two norms that cannot be chance")
    same_late = Limit(0.01, "the same, once training has given the table a norm of its own")
    late_from = Limit(0.1, "of its norm at the start, by which the table has then changed")

    def __init__(self) -> None:
        self._start = InitialWeights()
        self._layout: LayerIndex | None = None
        self._pairs: list[Pair] = []
        self._met: dict[Pair, bool] = {}  # whether they were the same when first measured together
        self._apart_on_purpose: dict[Pair, bool] = {}

    def observe(self, view: FrameView) -> Judgement | None:
        if not self._start.take(view):
            return None
        if view.layout is not self._layout:
            self._layout, self._pairs = view.layout, _pairs_of(view.layout)
        if not self._pairs:
            return None
        start, drift = self._start.norm, view.all_layers("weight_drift")
        self._meet(view)
        for pair in self._pairs:
            table, head = pair
            same = start[table] > 0 and abs(start[table] / start[head] - 1) < self.same
            copied = (same or self._met.get(pair, False)) and (drift[table] > 0 or drift[head] > 0)
            if copied and not self._are_set_apart(view, pair):
                return self.hold(pair, lambda pair=pair: self._describe(view, *pair))
        return self.stay()

    def _meet(self, view: FrameView) -> None:
        if all(pair in self._met for pair in self._pairs):
            return
        norms = np.full(view.layout.count, np.nan)
        norms[view.ids("weight")] = norms_before(view)
        for table, head in self._pairs:
            if (table, head) not in self._met and not np.isnan(norms[[table, head]]).any():
                # A table that has become longer by training has a length of its own, and its copy may be seen late.
                grown_by = abs(norms[table] / self._start.norm[table] - 1)
                within = self.same_late if grown_by > self.late_from else self.same
                self._met[table, head] = bool(norms[table] > 0 and abs(norms[table] / norms[head] - 1) < within)

    def _are_set_apart(self, view: FrameView, pair: Pair) -> bool:
        """Who trains the two at rates of their own knows that they are two."""
        if view.ids("optimizer") is not None:
            rates = view.all_layers("optimizer_rate")[list(pair)]
            if not np.isnan(rates).any():
                self._apart_on_purpose[pair] = bool(rates[0] != rates[1])
        return self._apart_on_purpose.get(pair, False)

    def _describe(self, view: FrameView, table: int, head: int) -> Judgement:
        layout, drift = view.layout, view.all_layers("weight_drift")
        how = "distance from its own start over its norm"
        evidence = tuple(Evidence("weight_drift", layout.path(i), known(drift[i]), None, how) for i in (head, table))
        summary = (
            f"{layout.path(head)} began as an exact copy of {layout.path(table)} and is trained apart from it: "
            "it was meant to be tied."
        )
        return Judgement(Severity.MODERATE, (head, table), view.step, 0.85, summary, evidence)


def _pairs_of(layout: LayerIndex) -> list[Pair]:
    trained = [layer for layer in layout.layers.parameters if layer.trainable and not layer.shared_with]
    tables = [layer for layer in trained if layer.kind is LayerKind.EMBEDDING]
    heads = [layer for layer in trained if layer.kind is LayerKind.WEIGHT and len(layer.shape) == 2]
    return [(table.id, head.id) for table in tables for head in heads if table.shape == head.shape]
