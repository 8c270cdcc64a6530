"""OPT008: Adam's eps is larger than its gradients."""

import numpy as np

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, Limit, Stage
from undertow.detect.features.matrices import Values, matrices_of
from undertow.detect.features.remedies import SMALL_EPS
from undertow.schema import Evidence, Severity


class EpsTooLarge(Condition):
    """Adam's eps is larger than the root of its second moment.

    What it sees: A median root of the second moment of a tenth of eps or less while updates are small and little is
        learnt, or below an eps that no recipe has.
    Why it is bad: With a large eps Adam divides by eps instead of adapting: it is plain SGD with a tiny rate.
    When it is wrong: A model that has learnt its data has gradients below any eps: much of the loss must still be
        there. Where some layers have gradients far above eps, the others are small for another reason (GRD001), and so
        are gradients that have once been large. The default eps is never to blame.
    References: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2014 (arXiv 1412.6980).
    """

    code, variant, formerly = "OPT008", "eps-too-large", "eps"
    places = ("setting", "optimizer")
    stage, is_exact, is_standing = Stage.PROGRAM, True, True
    pace = ("weight", 5)
    needs = frozenset({"optimizer", "optimizer_eps"})
    meaning = "The weights hardly move, whatever the gradients are"
    remedies = (SMALL_EPS,)
    patience = Limit.chance(2, "measured steps")
    far_below = Limit(0.1, "median √v over eps; 1e2 to 1e7 in health, 0.2 with branches that start next to zero")
    default = Limit(1e-8, "eps; where gradients are below that, the loss or the model makes them small")
    fits = Limit(10.0, "median √v over eps, once: what makes gradients small later is something else")
    largest = Limit(100.0, "√v over eps of any matrix: above it, the others are small for another reason")
    unusual = Limit(1e-3, "eps; published recipes stay below it. Then a median √v below eps itself is enough")
    remaining = Limit(0.7, "of the first losses: a loss that has fallen makes gradients small by success")
    small_update = Limit(1e-3, "update over weight")

    def __init__(self) -> None:
        self._eps = 0.0
        self._has_fitted = False
        self._streak = Consecutive()

    def observe(self, view: FrameView) -> Judgement | None:
        self._eps = view.frame.scalars.get("optimizer_eps", self._eps)
        matrices = matrices_of(view.layout)
        if view.ids("optimizer") is None or view.skipped or not len(matrices):
            return None
        ratios = matrices.values(view, "optimizer_eps_ratio")
        ratios = ratios[ratios > 0]  # zero: a layer that gets no gradient
        if not len(ratios):
            return self.stay()
        ratio, loss = float(np.median(ratios)), view.loss
        self._has_fitted |= ratio > self.fits
        is_unlearnt = loss is not None and not loss.remaining < self.remaining
        updates = matrices.update_ratios(view)
        updates = updates[np.isfinite(updates)]
        is_slow = not len(updates) or float(np.median(updates)) < self.small_update
        is_small = (is_slow and ratio <= self.far_below) or (ratio <= 1 and self._eps >= self.unusual)
        is_small = is_small and float(ratios.max()) <= self.largest and not 0 < self._eps <= self.default * 1.01
        if self._has_fitted or not is_small or not is_unlearnt:
            self._streak.end()
            return self.end()
        if self._streak.hold(view.step) < self.patience:
            return None
        return self.hold(None, lambda: self._describe(ratio, updates))

    def _describe(self, ratio: float, updates: Values) -> Judgement:
        evidence = [Evidence("optimizer_eps_ratio", None, ratio, 1e3, "root of the second moment over eps, median")]
        if len(updates):
            how = "median over the weight matrices"
            evidence.append(Evidence("update_ratio", None, float(np.median(updates)), 1e-3, how))
        summary = (
            f"Adam's eps is {1 / ratio:,.2g}× its typical gradient (far below it is usual): it divides by eps instead "
            "of adapting, and hardly moves."
        )
        severity, confidence = (Severity.SEVERE, 0.93) if ratio <= self.far_below else (Severity.MODERATE, 0.8)
        return Judgement(severity, (), self._streak.since, confidence, summary, tuple(evidence))
