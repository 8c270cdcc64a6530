"""OPT006: the validation loss rises while the training loss falls."""

import math

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage
from undertow.schema import Evidence, Remedy, Severity

NAMES = ("val_loss", "validation_loss", "valid_loss", "eval_loss", "test_loss")


class Overfitting(Condition):
    """The loss on held-out data rises while the training loss goes on falling.

    What it sees: A validation loss that the program logs (`val_loss`), beside the training loss. It is reported when
        the last three values are all at least a tenth above the best one, and the training loss is lower than it was at
        that best one.
    Why it is bad: From the best value on the model memorises its training data; the weights of then would do
        better.
    When it is wrong: Without a logged validation loss it says nothing. A validation loss can rise while accuracy still
        does, because the model becomes too sure of the cases it gets wrong. Fewer than five values are not judged.
    References: Prechelt, "Early Stopping — But When?", 1998.
    """

    code, variant, formerly = "OPT006", "overfitting", "validation"
    stage = Stage.OUTCOME
    is_of_one_training = True
    meaning = "The model memorises its training data, and gets worse on all other data"
    remedies = (
        Remedy(
            "stop-or-regularise",
            "Keep the weights of the best validation loss; then more data, augmentation, dropout or weight decay.",
            "if validation_loss < best:\n    best = validation_loss\n    torch.save(model.state_dict(), 'best.pt')",
            "None.",
            when_not="The validation set is tiny: its loss may rise by chance.",
        ),
    )
    worse_by = Limit(1.1, "times the best value: below that it is noise of a validation set")
    values = Limit(3, "values in a row, however many steps lie between them")
    judged_after = Limit(5, "values: the first ones fall or rise by chance")

    def __init__(self) -> None:
        self._name = ""
        self._count = self._worse_for = 0
        self._best, self._best_step, self._training_then = math.inf, 0, math.nan
        self._training = math.nan

    def observe(self, view: FrameView) -> Judgement | None:
        if view.loss is not None:
            self._training = view.loss.level
        scalars = view.frame.scalars
        name = self._name or next((known for known in NAMES if known in scalars), "")
        value = scalars.get(name)
        if value is None or not math.isfinite(value):
            return self.stay()
        self._name = name
        self._count += 1
        if value < self._best:
            self._best, self._best_step, self._training_then = value, view.step, self._training
        # For losses below zero a tenth of the distance covered so far would be needed; those are left alone.
        is_worse = self._best > 0 and value > self.worse_by * self._best
        self._worse_for = self._worse_for + 1 if is_worse else 0
        falls = self._training < self._training_then
        if self._worse_for < self.values or not falls or self._count < self.judged_after:
            return self.stay() if is_worse else self.end()
        return self.hold(None, lambda: self._describe(value))

    def _describe(self, value: float) -> Judgement:
        evidence = (
            Evidence(self._name, None, value, self._best, f"now, and at its best at step {self._best_step}"),
            Evidence("loss", None, self._training, self._training_then, "training loss, now and then: it still fell"),
        )
        summary = (
            f"The model has overfitted since step {self._best_step}: the validation loss rose from {self._best:.3g} to "
            f"{value:.3g} while the training loss fell."
        )
        return Judgement(Severity.MODERATE, (), self._best_step, 0.85, summary, evidence)
