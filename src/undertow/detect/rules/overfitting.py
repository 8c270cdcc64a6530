"""OPT006."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from undertow.detect import thresholds
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import FrameBatch
from undertow.detect.engine.view import FrameView
from undertow.detect.features.loss_trend import Loss
from undertow.detect.rule import Said, Verdict, Waiting
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity

NAMES = ("val_loss", "validation_loss", "valid_loss", "eval_loss", "test_loss")


class Overfitting(Waiting):
    """The loss on held-out data rises while the training loss goes on falling.

    What it sees
    ------------
    A validation loss that the program logs (`val_loss`), beside the training loss. It is reported when the last three
    values are all at least a tenth above the best one, and the training loss is lower than it was at that best one.

    Why it is bad
    -------------
    From the best value on the model learns its training data by heart; the weights of then would do better.

    When it is wrong
    ----------------
    Without a logged validation loss it says nothing. A validation loss can rise while accuracy still does, because the
    model becomes too sure of the cases it gets wrong. Fewer than five values are not judged.

    References
    ----------
    Prechelt, "Early Stopping — But When?", 1998.
    """

    code: ClassVar[str] = "OPT006"
    of_one_training: ClassVar[bool] = True
    waits_for: ClassVar[frozenset[str]] = frozenset({*NAMES})

    def __init__(self) -> None:
        self._condition = Condition("validation")
        self._name = ""
        self._count = 0
        self._best, self._best_step, self._training_then = math.inf, 0, math.nan
        self._above = 0
        self._latest: Loss | None = None

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    @property
    def resting(self) -> bool:
        return not self._condition.is_open

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        self._latest = batch.latest_loss(first, last) or self._latest
        return ()

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        if view.loss is not None:
            self._latest = view.loss
        scalars = view.frame.scalars
        name = self._name or next((known for known in NAMES if known in scalars), "")
        value = scalars.get(name)
        if value is None or not math.isfinite(value):
            return self._condition.stay()
        self._name = name
        self._count += 1
        training = math.nan if self._latest is None else self._latest.level
        if value < self._best:
            self._best, self._best_step, self._training_then = value, view.step, training
        # For losses below zero a tenth of the distance covered so far would be needed; those are left alone.
        worse = self._best > 0 and value > thresholds.OVERFIT_BY * self._best
        self._above = self._above + 1 if worse else 0
        falls = training < self._training_then
        if self._above < thresholds.OVERFIT_VALUES or not falls or self._count < thresholds.OVERFIT_AFTER:
            return self._condition.end() if not worse else self._condition.stay()
        return self._condition.hold(None, lambda: self._verdict(value, training))

    def _verdict(self, value: float, training: float) -> Verdict:
        evidence = (
            Evidence(self._name, None, value, self._best, f"now, and at its best at step {self._best_step}"),
            Evidence("loss", None, training, self._training_then, "training loss, now and then: it went on falling"),
        )
        summary = (
            f"The model overfits since step {self._best_step}: the validation loss rose from {self._best:.3g} to "
            f"{value:.3g} while the training loss fell."
        )
        return Verdict("validation", True, Severity.MODERATE, (), self._best_step, 0.85, summary, evidence)
