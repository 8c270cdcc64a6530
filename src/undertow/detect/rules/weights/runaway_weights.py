"""WGT001: all weights grow straight outward, as if something rewarded their size."""

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage
from undertow.detect.features.cadence import Cadence
from undertow.detect.features.initial_weights import InitialWeights
from undertow.detect.features.matrices import matrices_of
from undertow.detect.features.remedies import DECAY_THE_WEIGHTS
from undertow.schema import Evidence, LossKind, Remedy, Severity


class RunawayWeights(Condition):
    """All weight matrices grow at the same rate and straight outward.

    What it sees: By how much each update only lengthens its matrix, at measured steps ever further apart, three times
        in a row and whatever the loss. A loss below zero where its error cannot be makes it certain early: a term was
        taken off it.
    Why it is bad: Something rewards the size of the weights, as a penalty on large weights with the wrong sign does:
        outputs and gradients grow until they overflow.
    When it is wrong: Healthy growth turns the weights, too, and not all matrices at the same rate.
    References: Wortsman et al., "Small-scale proxies for large-scale Transformer training instabilities", 2023
        (arXiv 2309.14322).
    """

    code, variant, formerly = "WGT001", "runaway-weights", "runaway"
    stage = Stage.OPTIMIZER
    needs = frozenset({"weight"})
    meaning = "Something rewards large weights, so outputs and gradients grow with them"
    remedies = (
        Remedy(
            "add-the-penalty",
            "Add the penalty on weights to the loss; it is subtracted.",
            "loss = task_loss + coefficient * penalty",
            "A coefficient chosen for the wrong sign may be too strong for the right one.",
            when_not="No penalty on weights is in the loss: then lower the learning rate.",
        ),
        DECAY_THE_WEIGHTS,
    )

    grown_by = Limit(1.5, "times the start")
    radial = Limit(0.97, "of every update only lengthens the weight; healthy growth turns it, too")
    alike = Limit(0.15, "deviation of the rates over their mean: all matrices grow at the same one")
    rate = Limit(3e-3, "of itself at least, by which a matrix grows in one step")
    # Beside an error that is negative although it cannot be: healthy trainings reach 0.8 and more, but not below zero.
    radial_below_zero = Limit(0.8, "the share of every update, where an error is below zero")
    alike_below_zero = Limit(0.35, "the deviation of the rates, where an error is below zero")
    patience = Limit(3, "measured steps in a row, each a share of the run after the one before")

    def __init__(self) -> None:
        self._start = InitialWeights()
        self._cadence = Cadence()
        self._knows_kind = False  # the loss holds an error that cannot be negative
        self._outward = 0  # measured steps in a row at which all matrices grew straight outward
        self._since = 0

    def observe(self, view: FrameView) -> Judgement | None:
        if view.row("weight_norm") is None:
            return None
        self._knows_kind |= view.scalar("loss_kind") > LossKind.UNKNOWN
        loss = view.loss
        below = self._knows_kind and loss is not None and loss.value < 0 and loss.actors == 1
        if self._cadence.is_due(view.step):
            self._start.take(view)
        elif not below:
            return None
        matrices = matrices_of(view.layout)
        if len(matrices) < 2:
            return None
        lengths, ratios = matrices.values(view, "update_norm"), matrices.values(view, "update_ratio")
        norms = matrices.values(view, "weight_norm")
        radial, alike = (self.radial_below_zero, self.alike_below_zero) if below else (self.radial, self.alike)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            gained = norms * ratios / lengths - 1
            outward = (gained > radial * ratios) & (gained > self.rate)
            if not below:
                outward &= norms > self.grown_by * self._start.norm[matrices.ids]
        if not (outward.all() and np.std(gained) < alike * np.mean(gained)):
            self._outward = 0
            return self.end()
        self._since = self._since if self._outward else view.step
        self._outward += 1
        return (
            None if self._outward < self.patience else self.hold(True, lambda: self._describe(float(np.mean(gained))))
        )

    def _describe(self, rate: float) -> Judgement:
        how = "share by which every weight matrix grows at each step, straight outward"
        summary = (
            f"All weight matrices grow by {rate:.1%} at every step, straight outward: something rewards their size."
        )
        evidence = (Evidence("update_ratio", None, rate, None, how),)
        return Judgement(Severity.SEVERE, (), self._since, 0.93, summary, evidence)
