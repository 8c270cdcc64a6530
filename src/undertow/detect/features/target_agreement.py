"""Whether predictions fit their own targets better than those of other samples: if never, nothing relates them."""

import math
from collections import deque
from statistics import fmean

from undertow.detect.engine import FrameView, Limit, Tracker
from undertow.detect.features.matrices import matrices_of, middle

_WINDOW = 32  # measured steps


class TargetAgreement(Tracker):
    """By `output_agreement`: around 0 without a relation, and soon far above 0 with one, whatever the loss. Samples
    that come again are known by heart in time, so that a slow rise proves nothing.
    """

    is_of_one_training = True
    order = ("unrelated-targets", "loss-at-chance", "label-noise")

    proved = Limit(0.8, "mean of a whole window: by chance in less than one of 100,000")

    def __init__(self) -> None:
        self.latest: deque[float] = deque(maxlen=_WINDOW)
        self.paces: deque[float] = deque(maxlen=_WINDOW)  # update over weight, median over matrices
        self.drift = math.nan  # of the weights, median over matrices
        self.since = -1  # the first step of the task at which it was measured
        self.is_measured = False  # at this frame
        self._task: tuple[float, float] | None = None  # kind of the loss, and its classes

    @property
    def is_full(self) -> bool:
        return len(self.latest) == _WINDOW

    @property
    def is_proved(self) -> bool:
        """Predictions fit their own targets better, if only by a little, at steps enough to be sure of it."""
        return self.is_full and fmean(self.latest) > self.proved

    def follow(self, view: FrameView) -> None:
        self.is_measured = False
        if not self.open_variants.isdisjoint(self.order[1:]):  # one of them is enough
            return
        self._follow_weights(view)
        agreement, loss = view.scalar("output_agreement"), view.loss
        if math.isnan(agreement) or loss is None or loss.actors > 1:
            return
        self.is_measured = True
        kind, classes = view.scalar("loss_kind"), view.scalar("loss_classes")
        if not math.isnan(kind):
            task = (kind, -1.0 if math.isnan(classes) else classes)
            if self._task is not None and task != self._task:
                self.latest.clear()
                self.since = -1
            self._task = task
        self.since = view.step if self.since < 0 else self.since
        self.latest.append(agreement)

    def _follow_weights(self, view: FrameView) -> None:
        if "update" in view.frame.blocks:
            pace = middle(matrices_of(view.layout).update_ratios(view))
            if math.isfinite(pace):
                self.paces.append(pace)
        if "weight" in view.frame.blocks:
            drift = middle(matrices_of(view.layout).values(view, "weight_drift"))
            self.drift = drift if math.isfinite(drift) else self.drift
