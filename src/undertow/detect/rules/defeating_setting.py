"""OPT008."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from undertow.detect import thresholds
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.consecutive import grown
from undertow.detect.engine.view import FrameView
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.matrices import Matrices, Values, matrices_of
from undertow.detect.features.wording import name_layers
from undertow.detect.long_memory import LongMemory
from undertow.detect.rebuilding import Rebuilding
from undertow.detect.rule import Pace, Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity

_SETTINGS = frozenset({"optimizer", "optimizer_eps", "optimizer_made_anew", "optimizer_memory_ratio"})


class DefeatingSetting:
    """A setting of the optimizer, or the way it is used, works against it.

    What it sees
    ------------
    The optimizer's own state beside its settings, for the weight matrices: another optimizer object at every step, or
    three times at even intervals with the same rate, as at the top of a loop over epochs; a step counter that stands
    still; Adam's eps far above the root of its second moment while little is learnt, or an unusual one above it; a
    weight decay that takes several per cent of every weight at each step, of one group (of tables or of gains, too) or
    of all, with the weights seen to shrink; a momentum of 0.995 or more while the loss does not fall, or of 0.998 or
    more; betas of Adam that are exchanged, so that the mean of the gradients remembers many times as long as their
    scale; and gradients many times as large as Adam's second moment allows for, right before the loss leaps, or steps
    longer than the rate while it leaps, where the second moment remembers far longer than usual.

    Why it is bad
    -------------
    A rebuilt Adam has no memory and moves every weight by the full rate, whichever way. With a large eps Adam is plain
    SGD with a tiny rate. A large weight decay pulls all weights to zero whatever the data say. A large momentum keeps
    going for hundreds of steps after the gradient has turned, and a scale that forgets first makes those steps as large
    as the latest gradient is small.

    When it is wrong
    ----------------
    Rebuilding the optimizer between phases is fine, once or twice, or with another rate each time, or together with the
    model. Plain SGD has no memory to lose. A model that has learnt its data has gradients below any eps: the rule asks
    that much of the loss is still there. Where some layers have gradients far above eps, the others are small for
    another reason (GRD001). Weight decay is judged by the weights that shrink, not by its number alone.

    References
    ----------
    Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2014 (arXiv 1412.6980).
    Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2017 (arXiv 1711.05101).
    Wortsman et al., "Stable and low-precision training for large-scale vision-language models", 2023
    (arXiv 2304.13013).
    """

    code: ClassVar[str] = "OPT008"
    pace: ClassVar[Pace] = ("weight", 5)

    def __init__(self) -> None:
        self._rebuilt, self._eps = Condition("rebuilt"), Condition("eps")
        self._again, self._rebuilding = Condition("again"), Rebuilding()
        self._long_memory = LongMemory()
        self._has_memory, self._eps_set = False, 0.0
        self._eps_has_fitted = False  # once: what makes gradients small later is something else
        self._exchanged, self._memory = Condition("exchanged"), math.nan
        self._decay, self._momentum, self._lag = Condition("decay"), Condition("momentum"), Condition("lag")
        self._rebuilt_for = self._eps_for = self._still_for = 0
        self._rebuilt_since = self._eps_since = self._lag_step = 0
        self._counter = self._counter_step = -1.0
        self._largest_norm = np.empty(0, np.float32)  # of each layer
        self._lag_value = math.nan
        self._largest_momentum = 0.0

    def grow(self, count: int) -> None:
        self._largest_norm = grown(self._largest_norm, count, math.nan)

    @property
    def resting(self) -> bool:
        conditions = (
            self._rebuilt, self._eps, self._again, self._exchanged, self._decay, self._momentum, self._lag
        )  # fmt: skip
        follows = self._largest_momentum >= thresholds.MOMENTUM or not math.isnan(self._lag_value)
        waits = follows or self._rebuilding.is_regular or not self._long_memory.resting
        return not waits and not any(one.is_open for one in conditions)

    def news(self, batch: FrameBatch) -> Flags:
        return batch.with_any(_SETTINGS)

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        rates = batch.scalar("lr")[first:last]
        self._rebuilding.take_rates(rates)
        return ()

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        self._rebuilding.observe(view)
        remembers = self._long_memory.observe(view)
        self._eps_set = view.frame.scalars.get("optimizer_eps", self._eps_set)
        if view.ids("optimizer") is None or view.skipped:
            return (*remembers, *self._follow_momentum(view), *self._follow_lag(view), *self._follow_rebuilding(view))
        matrices = matrices_of(view.layout)
        if not len(matrices):
            return ()
        return (
            *remembers,
            *self._observe_rebuilt(view, matrices),
            *self._follow_rebuilding(view),
            *self._observe_eps(view, matrices),
            *self._observe_decay(view, matrices),
            *self._observe_momentum(view, matrices),
            *self._observe_exchanged(view),
            *self._observe_lag(view, matrices),
        )

    # -- memory that is lost ------------------------------------------------------------------------------

    def _observe_rebuilt(self, view: FrameView, matrices: Matrices) -> tuple[Verdict, ...]:
        flags = matrices.values(view, "optimizer_rebuilt")
        counters, momenta = (matrices.values(view, f"optimizer_{name}") for name in ("step_count", "momentum"))
        self._has_memory = has_memory = bool((counters >= 0).any()) or bool((momenta > 0).any())
        known = flags[~np.isnan(flags)]
        again = len(known) > 0 and float(known.mean()) > 0.5
        counter = float(np.nanmax(counters)) if (counters >= 0).any() else -1.0
        stands = 0 <= counter <= self._counter and view.step > self._counter_step
        if view.ids("update") is not None:  # parameters without a gradient are not stepped, and not counted
            stands = stands and bool((matrices.values(view, "update_norm") > 0).any())
        if counter >= 0:
            self._counter, self._counter_step = counter, view.step
        if not (again or stands) or not has_memory:
            self._rebuilt_for = 0
            return self._rebuilt.end()
        if self._rebuilt_for == 0:
            self._rebuilt_since = view.step
        self._rebuilt_for += 1
        if self._rebuilt_for < thresholds.REBUILT_FRAMES:
            return ()
        return self._rebuilt.hold(again, lambda: self._verdict_rebuilt(again, counter))

    def _verdict_rebuilt(self, again: bool, counter: float) -> Verdict:
        evidence: list[Evidence] = []
        if again:
            how = f"another optimizer object at each of the last {self._rebuilt_for} measured steps"
            evidence.append(Evidence("optimizer_rebuilt", None, 1.0, 0.0, how))
        if counter >= 0:
            evidence.append(Evidence("optimizer_step_count", None, counter, None, "its own counter does not advance"))
        summary = "The optimizer is built anew at every step: its momentum and its second moment are lost each time."
        if not again:
            summary = "The optimizer's state is set back at every step: its counter does not advance."
        return Verdict("rebuilt", True, Severity.SEVERE, (), self._rebuilt_since, 0.97, summary, tuple(evidence))

    def _follow_rebuilding(self, view: FrameView) -> tuple[Verdict, ...]:
        """Rebuilt in every epoch. What is rebuilt at every step is said by the other."""
        if not self._has_memory or self._rebuilt.is_open or not self._rebuilding.is_regular:
            return self._again.stay()
        if view.loss is not None and view.loss.actors > 1:
            return self._again.stay()
        return self._again.hold(None, self._verdict_again)

    def _verdict_again(self) -> Verdict:
        steps, every = self._rebuilding.steps, self._rebuilding.interval
        how = f"another optimizer object for the same parameters, every {every:.0f} steps, the latest at {steps[-1]}"
        evidence = (Evidence("optimizer_rebuilt", None, 1.0, 0.0, how),)
        summary = (
            f"The optimizer is built anew every {every:.0f} steps, as inside a loop over epochs: its momentum and its "
            "second moment are lost each time."
        )
        # With time enough in between, most of what it forgets is found again.
        severity = Severity.MODERATE if every <= thresholds.REBUILT_WITHIN else Severity.MILD
        return Verdict("again", True, severity, (), steps[0], 0.8, summary, evidence)

    # -- eps ----------------------------------------------------------------------------------------------

    def _observe_eps(self, view: FrameView, matrices: Matrices) -> tuple[Verdict, ...]:
        ratios = matrices.values(view, "optimizer_eps_ratio")
        ratios = ratios[ratios > 0]  # zero: a layer that gets no gradient
        if not len(ratios):
            return self._eps.stay()
        loss = view.loss
        ratio = float(np.median(ratios))
        self._eps_has_fitted |= ratio > thresholds.EPS_RATIO_FITS
        # A loss that has fallen a lot makes gradients small by success.
        unlearnt = loss is not None and not loss.remaining < thresholds.EPS_REMAINING
        updates = matrices.update_ratios(view)
        updates = updates[np.isfinite(updates)]
        slow = not len(updates) or float(np.median(updates)) < thresholds.EPS_UPDATE
        small = slow and ratio <= thresholds.EPS_RATIO
        small |= ratio <= 1 and self._eps_set >= thresholds.EPS_UNUSUAL
        small = small and float(ratios.max()) <= thresholds.EPS_RATIO_LARGEST
        if self._eps_has_fitted or not small or not unlearnt:
            self._eps_for = 0
            return self._eps.end()
        if self._eps_for == 0:
            self._eps_since = view.step
        self._eps_for += 1
        if self._eps_for < thresholds.EPS_FRAMES:
            return ()
        return self._eps.hold(None, lambda: self._verdict_eps(ratio, updates))

    def _verdict_eps(self, ratio: float, updates: Values) -> Verdict:
        evidence = [Evidence("optimizer_eps_ratio", None, ratio, 1e3, "root of the second moment over eps, median")]
        if len(updates):
            how = "median over the weight matrices"
            evidence.append(Evidence("update_ratio", None, float(np.median(updates)), 1e-3, how))
        summary = (
            f"Adam's eps is {1 / ratio:,.2g} times as large as its typical gradient: it divides by eps instead of "
            "adapting, and hardly moves."
        )
        far = ratio <= thresholds.EPS_RATIO
        severity, confidence = (Severity.SEVERE, 0.93) if far else (Severity.MODERATE, 0.8)
        return Verdict("eps", True, severity, (), self._eps_since, confidence, summary, tuple(evidence))

    # -- weight decay -------------------------------------------------------------------------------------

    def _observe_decay(self, view: FrameView, matrices: Matrices) -> tuple[Verdict, ...]:
        decay = view.all_layers("optimizer_weight_decay") * view.all_layers("optimizer_rate")
        norms = view.all_layers("weight_norm")
        if len(self._largest_norm) != len(norms):
            self._largest_norm = np.full(len(norms), np.nan, np.float32)
        self._largest_norm = np.fmax(self._largest_norm, norms)
        known = np.zeros(len(decay), bool)
        known[matrices.ids] = np.isfinite(decay[matrices.ids])
        # A group of its own may have a decay that no recipe has, also one of tables or of gains; a large one is judged
        # by most of the model.
        absurd = decay > thresholds.DECAY_ABSURD
        if not known.any() and not absurd.any():
            return self._decay.stay()
        members = absurd if absurd.any() else known
        share = float(np.median(decay[members]))
        with np.errstate(invalid="ignore", divide="ignore"):
            kept = (norms / self._largest_norm)[members]
        kept = kept[np.isfinite(kept)]
        loss = view.loss
        unlearnt = loss is not None and not loss.remaining < thresholds.DECAY_REMAINING
        too_much = share > thresholds.DECAY_ABSURD or (share > thresholds.DECAY_LARGE and unlearnt)
        if not too_much or not len(kept) or float(np.median(kept)) > thresholds.DECAY_KEPT:
            return self._decay.stay() if too_much else self._decay.end()
        rest = float(np.median(kept))
        everywhere = bool(members[known].all()) and bool(known.any())
        layers = () if everywhere else tuple(view.layout.in_order(np.flatnonzero(members)))
        setting = float(np.median(view.all_layers("optimizer_weight_decay")[members]))
        return self._decay.hold(layers, lambda: self._verdict_decay(view, layers, setting, share, rest))

    def _verdict_decay(
        self, view: FrameView, layers: tuple[int, ...], decay: float, share: float, rest: float
    ) -> Verdict:
        place = view.layout.path(layers[0]) if layers else None
        how = f"times the learning rate: {share:.1%} of every step"
        evidence = (
            Evidence("optimizer_weight_decay", place, decay, 0.01, how),
            Evidence("weight_norm", place, rest, 1.0, "what is left of the weight matrices' largest norms, median"),
        )
        whose = f"every weight of {name_layers(view.layout, layers)}" if layers else "every weight"
        summary = (
            f"A weight decay of {decay:g} takes {share:.1%} of {whose} at each step: the weights shrink to "
            f"{rest:.0%} of what they were, whatever the gradient says."
        )
        return Verdict("decay", True, Severity.SEVERE, layers, 0, 0.95, summary, evidence)

    # -- momentum -----------------------------------------------------------------------------------------

    def _observe_momentum(self, view: FrameView, matrices: Matrices) -> tuple[Verdict, ...]:
        momenta = matrices.values(view, "optimizer_momentum")
        if not np.isnan(momenta).all():
            self._largest_momentum = float(np.nanmax(momenta))
        return self._follow_momentum(view)

    def _follow_momentum(self, view: FrameView) -> tuple[Verdict, ...]:
        if self._largest_momentum < thresholds.MOMENTUM:
            return self._momentum.end()
        loss = view.loss
        if loss is None or loss.actors > 1:
            return self._momentum.stay()
        absurd = self._largest_momentum >= thresholds.MOMENTUM_ABSURD and loss.seen >= thresholds.MOMENTUM_ABSURD_STEPS
        stuck = not loss.falling and not loss.remaining < thresholds.MOMENTUM_REMAINING
        stuck = stuck and loss.seen >= thresholds.MOMENTUM_STEPS
        if not stuck and not absurd:
            return self._momentum.stay()
        return self._momentum.hold(stuck, lambda: self._verdict_momentum(loss, self._largest_momentum, stuck))

    def _verdict_momentum(self, loss: Loss, momentum: float, stuck: bool) -> Verdict:
        evidence = (
            Evidence("optimizer_momentum", None, momentum, 0.9, f"it remembers {1 / (1 - momentum):,.0f} steps"),
            Evidence("loss", None, loss.level, loss.best, "level now, and at its best"),
        )
        summary = (
            f"A momentum of {momentum:g} carries every gradient along for {1 / (1 - momentum):,.0f} steps"
            f"{', and the loss does not fall' if stuck else ', long after it has turned'}."
        )
        return Verdict("momentum", True, Severity.MODERATE, (), loss.best_step if stuck else 0, 0.8, summary, evidence)

    def _observe_exchanged(self, view: FrameView) -> tuple[Verdict, ...]:
        self._memory = view.frame.scalars.get("optimizer_memory_ratio", self._memory)
        if self._largest_momentum < thresholds.EXCHANGED_MOMENTUM or not self._memory > thresholds.EXCHANGED_MEMORY:
            return self._exchanged.end()
        return self._exchanged.hold(None, self._verdict_exchanged)

    def _verdict_exchanged(self) -> Verdict:
        first = self._largest_momentum
        second = 1.0 - self._memory * (1.0 - first)
        evidence = (
            Evidence("optimizer_momentum", None, first, 0.9, f"Adam's first beta; its second one is {second:.3g}"),
            Evidence("optimizer_memory_ratio", None, self._memory, 1.0, "memory of the mean over that of the scale"),
        )
        summary = (
            f"Adam's betas of {first:.3g} and {second:.3g} look exchanged: the mean of its gradients remembers "
            f"{self._memory:.0f} times as long as their scale."
        )
        return Verdict("exchanged", True, Severity.SEVERE, (), 0, 0.95, summary, evidence)

    # -- a second moment that lags ------------------------------------------------------------------------

    def _observe_lag(self, view: FrameView, matrices: Matrices) -> tuple[Verdict, ...]:
        sizes = matrices.values(view, "optimizer_gradient_rms")
        sizes = sizes[np.isfinite(sizes)]
        if len(sizes) and float(np.median(sizes)) > thresholds.LAG and view.loss is not None:
            if view.step - self._lag_step > thresholds.LAG_LASTS:
                self._lag_value = view.loss.value  # of weights that the large updates have not yet changed
            self._lag_step = view.step
        return self._follow_lag(view)

    def _follow_lag(self, view: FrameView) -> tuple[Verdict, ...]:
        loss = view.loss
        if loss is None or math.isnan(self._lag_value) or not loss.positive:
            return self._lag.stay()
        if view.step - self._lag_step > thresholds.LAG_LASTS:
            self._lag_value = math.nan
            return self._lag.end()
        if loss.value < thresholds.LAG_RISE * self._lag_value or loss.jump < thresholds.SPIKE_DEVIATIONS:
            return self._lag.stay()
        return self._lag.hold(None, lambda: self._verdict_lag(loss))

    def _verdict_lag(self, loss: Loss) -> Verdict:
        evidence = (
            Evidence("optimizer_gradient_rms", None, thresholds.LAG, 1.0, f"exceeded at step {self._lag_step}"),
            Evidence("loss", None, loss.value, self._lag_value, "after the large updates, and before them"),
        )
        summary = (
            "Adam's second moment lags behind the gradients: its updates are several times too large, and the loss "
            f"leapt to {loss.value:.3g}. A smaller beta2 follows faster."
        )
        return Verdict("lag", True, Severity.MODERATE, (), self._lag_step, 0.7, summary, evidence)
