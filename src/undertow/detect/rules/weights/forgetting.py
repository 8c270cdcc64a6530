"""WGT006: a model that was trained before forgets."""

import math

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage
from undertow.detect.features.module_structure import structure_of
from undertow.schema import Evidence, LossKind, Remedy, Severity


class Forgetting(Condition):
    """Fine-tuning moves a trained model so far that it forgets what it knew.

    What it sees: A classifier whose first loss is far below that of a guess, and whose answers are mostly right: it was
        trained before. Its loss is then well above where it began, while half of its matrices have moved away from
        their start.
    Why it is bad: Steps that move the weights far destroy what they had learned; the learning rate is too high for
        fine-tuning.
    When it is wrong: Distance from a random start is healthy and not reported. Losses over pairs, whose labels are
        places in a batch, do not tell whether a model was trained before.
    References: Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", 2017 (arXiv
        1612.00796).
    """

    code, variant = "WGT006", "forgetting"
    stage = Stage.COURSE
    meaning = "What the weights held at the start is being overwritten"
    remedies = (
        Remedy(
            "stay-close-to-the-start",
            "Fine-tune with a smaller learning rate, or with adapters, so that what was learnt before is kept.",
            "$build_lower_rate",
            "The new task is learnt more slowly.",
            when_not="You train from scratch: weights are meant to move.",
        ),
    )

    trained_before = Limit(0.5, "of ln(classes): a lower first cross-entropy is not that of a guess")
    loss_risen = Limit(1.5, "times the first loss: batches of a trained model differ by less")
    drift = Limit(0.3, "distance of half of the matrices from their start, over its norm")
    least_losses = Limit(10, "losses, before their level is known")

    def __init__(self) -> None:
        self._was_trained: bool | None = None

    def observe(self, view: FrameView) -> Judgement | None:
        loss = view.loss
        if self._was_trained is None and loss is not None:
            self._was_trained = self._is_trained(view, loss.first)
        if not self._was_trained or view.row("weight_norm") is None:
            return None
        drift = view.all_layers("weight_drift")[structure_of(view.layout).matrices]
        if loss is None or loss.seen < self.least_losses or np.isnan(drift).all():
            return self.stay()
        if loss.level > self.loss_risen * loss.first and np.nanmedian(drift) > self.drift:
            return self.hold(True, lambda: self._describe(loss.level, loss.first, float(np.nanmedian(drift))))
        return self.end() if loss.level < loss.first else self.stay()

    def _is_trained(self, view: FrameView, first: float) -> bool:
        classes, right = view.scalar("loss_classes"), view.scalar("output_accuracy")
        factor = abs(view.scalar("loss_factor"))  # a scaled loss is no better one
        guess = math.log(classes) if classes > 1 else math.nan
        entropy, rows = view.scalar("label_entropy"), view.scalar("loss_rows")
        # One label for all, or one of its own for each: places in a batch, by which pairs are told from others.
        of_pairs = entropy == 0 or (rows == classes and entropy > 0.99 * guess)
        return (
            view.scalar("loss_kind") == LossKind.CROSS_ENTROPY
            and not of_pairs
            and (first / factor if factor > 0 else first) < self.trained_before * guess
            and right > max(0.5, 3 / classes)
        )

    def _describe(self, level: float, first: float, drift: float) -> Judgement:
        evidence = (
            Evidence("weight_drift", None, drift, None, "distance from the start over its norm, median over matrices"),
            Evidence("loss", None, level, first, "the loss now, against the very first one"),
        )
        summary = "The model was trained before and now forgets: its weights have left their start, and the loss rose."
        return Judgement(Severity.MODERATE, (), 0, 0.8, summary, evidence)
