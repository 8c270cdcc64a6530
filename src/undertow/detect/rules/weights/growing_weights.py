"""WGT001: weights that grow without bound."""

from collections.abc import Sequence

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, LayerValues, Limit, Stage
from undertow.detect.features.cadence import Cadence
from undertow.detect.features.initial_weights import InitialWeights
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.remedies import DECAY_THE_WEIGHTS, LOWER_LEARNING_RATE, TURN_THE_TERM
from undertow.detect.features.wording import known, name_layers
from undertow.schema import Evidence, Finding, Remedy, Severity


class GrowingWeights(Condition):
    """Weights grow without bound.

    What it sees: The norm of each weight matrix at measured steps ever further apart. A matrix is reported when its
        norm has grown tenfold since the start and was larger at each of six such steps than at the one before. It is an
        alarm while the loss is no lower than at the start, or has fallen far below zero, and a remark otherwise.
    Why it is bad: Large weights make large outputs: logits and activations overflow, softmax and tanh saturate, and
        every update becomes small beside them. The causes are a learning rate that is too high, or training for long
        without weight decay.
    When it is wrong: Healthy weights grow to two or three times their start over a few hundred steps, a last layer that
        must reach large targets to twenty times. Matrices that start at zero or tiny on purpose, and embeddings, are
        not judged.
    References: Wortsman et al., "Small-scale proxies for large-scale Transformer training instabilities", 2023
        (arXiv 2309.14322).
    """

    code, variant, formerly = "WGT001", "growing-weights", "growing runaway runaway-weights"
    places = ("total",)
    stage = Stage.COURSE
    needs = frozenset({"weight"})
    meaning = "Weights that grow without end make outputs and gradients grow with them"
    remedies = (DECAY_THE_WEIGHTS, LOWER_LEARNING_RATE, TURN_THE_TERM)

    grown_by = Limit(10.0, "times the start; healthy weights grow to at most three times over 200 steps")
    patience = Limit.chance(6, "measured steps, each a share of the run after the one before, each with a larger norm")
    rewarded = Limit(10.0, "times the size of the first loss, below zero: the loss rewards the growth itself")
    rise = Limit(1.01, "times the norm before, to count as growth")
    least_start = Limit(0.1, "of a usual start: what starts tiny on purpose may grow")
    outlier = Limit(100.0, "largest weight over the 95th percentile: a few enormous weights are no growth (WGT004)")

    _last = LayerValues(np.float64, np.nan)
    _rises = LayerValues(np.int32, 0)  # in a row
    _since = LayerValues(np.int64, -1)  # the first look at which it was as large, and none after it smaller

    def __init__(self) -> None:
        self._start = InitialWeights()
        self._cadence = Cadence()

    def observe(self, view: FrameView) -> Judgement | None:
        norms, ids = view.row("weight_norm"), view.ids("weight")
        if norms is None or ids is None or not self._cadence.is_due(view.step):
            return None
        self._start.take(view)
        measured = ids[~np.isnan(norms)]
        now = norms[~np.isnan(norms)].astype(np.float64)
        rose = now > self._last[measured] * self.rise
        self._rises[measured] = np.where(rose, self._rises[measured] + 1, 0)
        self._last[measured] = now
        members = self._find_grown(view)
        if not members:
            return self.end()
        loss = view.loss
        learning = loss is not None and -self.rewarded * abs(loss.first) < loss.level < loss.first
        rewarded = loss is not None and not learning and loss.level < loss.first
        return self.hold((members, learning), lambda: self._describe(view, members, learning, rewarded))

    def _find_grown(self, view: FrameView) -> tuple[int, ...]:
        layout, structure = view.layout, structure_of(view.layout)
        matrices = structure.matrices
        # Beside a usual start, so that what starts tiny on purpose may grow.
        sizes = np.array([layout.layers[int(i)].parameter_count for i in matrices], np.float64)
        usual = self.least_start * np.sqrt(sizes / structure.fan_in[matrices])
        start = np.maximum(self._start.norm[matrices], usual)
        large = self._last[matrices] > self.grown_by * start
        self._since[matrices] = np.where(
            large, np.where(self._since[matrices] < 0, view.step, self._since[matrices]), -1
        )
        grew = large & (self._rises[matrices] >= self.patience)
        grew &= layout.is_trainable[matrices]
        if grew.any():  # a few enormous weights are no growth: see WGT004
            largest, usual = view.all_layers("weight_max_abs")[matrices], view.all_layers("weight_abs_p95")[matrices]
            grew &= ~(largest > self.outlier * usual)
        return tuple(layout.in_order(matrices[grew]))

    def _describe(self, view: FrameView, members: tuple[int, ...], learning: bool, rewarded: bool) -> Judgement:
        layout = view.layout
        how = "norm now, against the norm at the start"
        evidence = tuple(
            Evidence("weight_norm", layout.path(i), known(self._last[i]), known(self._start.norm[i]), how)
            for i in members[:3]
        )
        if rewarded and view.loss is not None:
            how = "the loss, and the first: it falls without end as they grow"
            evidence = (*evidence, Evidence("loss", None, view.loss.level, view.loss.first, how))
        verb, still = ("has", "grows") if len(members) == 1 else ("have", "grow")
        summary = f"{name_layers(layout, members)} {verb} grown more than tenfold since the start, and still {still}."
        severity = Severity.INFO if learning else Severity.MODERATE
        trainable = int(layout.is_trainable[structure_of(layout).matrices].sum())
        layers = () if len(members) == trainable > 1 else members  # all of them: no layer's fault
        return Judgement(severity, layers, int(self._since[list(members)].min()), 0.8, summary, evidence)

    @classmethod
    def remedies_for(cls, finding: Finding) -> Sequence[Remedy]:
        is_rewarded = any(one.quantity == "loss" for one in finding.evidence)
        return (TURN_THE_TERM,) if is_rewarded else cls.remedies[:2]
