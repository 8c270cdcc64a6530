"""LSS003."""

from __future__ import annotations

from typing import ClassVar

from undertow.detect.condition import Condition
from undertow.detect.rule import Verdict
from undertow.detect.view import View
from undertow.schema.findings import Evidence
from undertow.schema.quantities import LossKind
from undertow.schema.severity import Severity

PATIENCE = 2  # measured steps: by then optimizers that step in turn have shown themselves


class WrongSign:
    """An error is multiplied by a negative number before it is minimised, so that training makes it larger.

    What it sees
    ------------
    The constant factor between a loss function that cannot be negative (cross-entropy, squared or absolute error,
    binary cross-entropy) and what backward was called on, read in the graph of the loss; and that the loss is
    negative. Two measured steps in a row are needed.

    Why it is bad
    -------------
    Every step makes the error larger, without a bound: the model learns to be wrong, then the weights overflow.

    When it is wrong
    ----------------
    Rewards, likelihoods and other losses that are meant to be negative are unknown to this rule and never reported,
    nor are losses weighted by tensors, as in policy gradients. Adversaries that step in turn (a GAN's generator under
    the minimax loss) raise an error on purpose: with several optimizers in turn the rule is silent. Gradient ascent
    on purpose with a single optimizer (unlearning) is reported. No false alarm in the zoo.

    References
    ----------
    Humbatova et al., "Taxonomy of Real Faults in Deep Learning Systems", 2020 (arXiv 1910.11015).
    Zhang et al., "AUTOTRAINER: An Automatic DNN Training Problem Detection and Repair System", 2021.
    """

    code: ClassVar[str] = "LSS003"

    def __init__(self) -> None:
        self._condition = Condition("sign")
        self._lasting = 0
        self._first_step = 0

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    def observe(self, view: View) -> tuple[Verdict, ...]:
        factor = view.frame.scalars.get("loss_factor")
        if factor is None or factor != factor:  # NaN: not known
            return self._condition.stay()
        loss = view.loss
        known = view.scalar("loss_kind") != LossKind.UNKNOWN
        if factor >= 0 or not known or loss is None or loss.value >= 0 or loss.actors > 1:
            self._lasting = 0
            return self._condition.end()
        if self._lasting == 0:
            self._first_step = view.step
        self._lasting += 1
        if self._lasting < PATIENCE:
            return ()
        return self._condition.hold(None, lambda: self._verdict(loss.value, factor))

    def _verdict(self, value: float, factor: float) -> Verdict:
        evidence = (
            Evidence("loss_factor", None, factor, None, "constant factor between the error and what is minimised"),
            Evidence("loss", None, value, None, "below zero, where this error can never be"),
        )
        summary = (
            f"The loss is an error times {factor:g}: minimising it makes the error as large as possible. "
            "Remove the minus sign."
        )
        return Verdict("sign", True, Severity.SEVERE, (), self._first_step, 0.97, summary, evidence)
