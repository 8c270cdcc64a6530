"""WGT006: the whole model is set back to an earlier state."""

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, FrameView, Judgement, LayerValues, Limit, Stage
from undertow.detect.features.initial_weights import InitialWeights
from undertow.detect.features.loss_trend import actor_of
from undertow.detect.features.matrices import matrices_of
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.remedies import LET_ONLY_THE_OPTIMIZER_WRITE
from undertow.detect.features.wording import known
from undertow.schema import Evidence, GradientState, Severity


class WeightsSetBack(Condition):
    """All weights are set back to an earlier state while training goes on.

    What it sees: Most weight matrices are suddenly nearer to their start than their own updates could have taken them,
        while the optimizer stays the same one: no way is longer than the sum of its steps. It counts at the second
        time, or at once when the weights are back at their very start and the loss leaps.
    Why it is bad: An old state that is loaded again in every epoch undoes everything learned since.
    When it is wrong: A model that is set back together with its optimizer, as for another fold, is left alone; so is a
        new phase in which other layers train than before.
    References: PyTorch documentation, "Saving and Loading Models".
    """

    code, variant, formerly = "WGT006", "weights-set-back", "set-back"
    places = ("overwritten",)
    stage = Stage.COURSE
    meaning = "Each time, everything learned since the earlier state is lost"
    remedies = (LET_ONLY_THE_OPTIMIZER_WRITE,)

    travel = Limit(1.5, "times the steps between two measured ones, times the longer update: the farthest way")
    noise = Limit(0.15, "of the distance, which is known from sketches only")
    share = Limit(0.6, "of the matrices: the model is set back, not a layer")
    times = Limit(2, "times: once may be a checkpoint that is loaded on purpose")
    leap = Limit(3, "deviations of the loss, since weights were measured last")

    _drift = LayerValues(np.float64, np.nan)
    _update = LayerValues(np.float64, np.nan)  # norm of the latest measured one
    _is_trained = LayerValues(np.int8, -1)  # -1: not known yet

    def __init__(self) -> None:
        self._start = InitialWeights()
        self._measured_step: int | None = None
        self._facts: tuple[bytes, ...] = ()  # about gradients, of the latest frame that had any
        self._returns: list[int] = []
        self._largest_jump = -1.0  # of the loss since weights were measured last
        self._rebuilt_step = -1  # at which the optimizer or what it trains was another one
        self._looked_at: dict[int, NDArray[np.bool_]] = {}  # of each optimizer in turn: matrices of its latest look

    def observe(self, view: FrameView) -> Judgement | None:
        if view.loss is not None:
            self._largest_jump = max(self._largest_jump, view.loss.jump)
        if view.frame.scalars.get("optimizer_made_anew") == 1 or self._trains_others(view):
            self._returns.clear()
            self._rebuilt_step = view.step
        if view.ids("weight") is None:
            return self.stay()
        measured_before = self._measured_step or 0
        back, fresh = self._shares(view)
        leapt, self._largest_jump = self._largest_jump > self.leap, -1.0
        is_fresh = fresh >= self.share
        if measured_before < self._rebuilt_step <= view.step or not (is_fresh or (leapt and back >= self.share)):
            return self.stay()
        self._returns.append(view.step)
        if len(self._returns) < self.times and not (leapt and is_fresh):
            return self.stay()
        return self.hold(len(self._returns), lambda: self._describe(view, is_fresh))

    def _shares(self, view: FrameView) -> tuple[float, float]:
        """Shares of the weight matrices that were set back, and that were set back to their very start."""
        if not self._start.take(view) or view.row("update_norm") is None:
            return 0.0, 0.0
        matrices = matrices_of(view.layout)
        ids, drifts, updates = matrices.ids, matrices.values(view, "weight_drift"), matrices.values(view, "update_norm")
        before, updates_before = self._drift[ids], self._update[ids]
        actor, looked_at = actor_of(view.frame), np.isfinite(drifts)
        there = self._looked_at.get(actor, looked_at)
        self._looked_at[actor] = looked_at
        if len(there) != len(looked_at):  # the table of layers has grown
            there = looked_at
        gap = 0 if self._measured_step is None else view.step - self._measured_step
        self._measured_step, self._drift[ids], self._update[ids] = view.step, drifts, updates
        nearer_by = before - drifts
        if gap <= 0 or not (nearer_by > self.noise * before).any():  # as at nearly every step
            return 0.0, 0.0
        lengths = np.array([updates_before, updates]) / self._start.norm[ids]  # in the units of the drift
        longest = np.fmax(*np.where(np.isfinite(lengths), lengths, np.nan))
        measured = np.isfinite(before) & np.isfinite(drifts) & (longest > 0)
        if not measured.any():
            return 0.0, 0.0
        # A matrix that was there at its optimizer's look before, and is no more, was not set back.
        count = max(int(measured.sum()), int((there & np.isfinite(before)).sum()))
        farthest = self.travel * gap * longest[measured]
        back = nearer_by[measured] > farthest + self.noise * before[measured]
        return back.sum() / count, (back & (drifts[measured] < farthest)).sum() / count

    def _trains_others(self, view: FrameView) -> bool:
        """Whether a layer is trained that was not before, or the other way round: another phase, with new parts."""
        ids, states, holders = view.ids("gradient"), view.row("gradient_state"), view.row("gradient_optimizer")
        if ids is None or states is None or holders is None:
            return False
        facts = ids.tobytes(), states.tobytes(), holders.tobytes()
        if facts == self._facts:
            return False
        self._facts = facts
        measured = ~np.isnan(holders)  # of optimizers in turn, each knows its own parameters only
        chosen = ids[measured]
        now = ((holders >= 0) & (states != GradientState.FROZEN))[measured].astype(np.int8)
        before = self._is_trained[chosen]
        self._is_trained[chosen] = now
        return bool(((before >= 0) & (before != now)).any())

    def _describe(self, view: FrameView, to_start: bool) -> Judgement:
        drift = float(np.nanmedian(view.all_layers("weight_drift")[structure_of(view.layout).matrices]))
        how = (
            f"distance from the start over the weight at step {view.step}, median: nearer than their own updates could "
            f"have taken them. Seen at step{'s' * (len(self._returns) > 1)} {', '.join(map(str, self._returns[-5:]))}"
        )
        evidence = [Evidence("weight_drift", None, known(drift), None, how)]
        if view.loss is not None:
            how = "the loss after it, and at its best"
            evidence.append(Evidence("loss", None, view.loss.value, view.loss.best, how))
        where = "where they began" if to_start else "an earlier state"
        summary = (
            f"All weights are set back to {where} while training goes on: what was learned is lost. Is an old state "
            "loaded inside the loop?"
        )
        return Judgement(Severity.SEVERE, (), self._returns[0], 0.9, summary, tuple(evidence))
