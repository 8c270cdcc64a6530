"""LSS003: two adversaries that make each other's loss smaller."""

import numpy as np

from undertow.detect.engine import Condition, Flags, FrameBatch, FrameView, Judgement, Limit, Stage, Wake
from undertow.detect.features.loss_sign import FIRST_LOSSES
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.remedies import MIND_THE_SIGN
from undertow.schema import Evidence, Severity


def _are_two(batch: FrameBatch) -> Flags:
    return np.asarray(batch.loss("actors") == 2, bool)


class CooperatingAdversaries(Condition):
    """Of two optimizers that step in turn, both losses fall below zero without end.

    What it sees: The losses of two optimizers in turn, as of a GAN. Both are below zero by a hundred times the size of
        their first losses.
    Why it is bad: What one of two adversaries gains, the other one loses. Where both gain without a bound, they pull
        the same way: a term of one loss has the wrong sign, and neither learns anything about the data.
    When it is wrong: A critic without any penalty has no floor, but its generator's loss then rises. Two trainings that
        do not meet and both maximise something without a bound are reported.
    References: Arjovsky et al., "Wasserstein GAN", 2017 (arXiv 1701.07875).
    """

    code, variant = "LSS003", "cooperating-adversaries"
    places = ("loss",)
    stage, is_standing = Stage.PROGRAM, True
    needs, wakes_on = frozenset({"loss"}), Wake(_are_two)
    is_of_one_training = True
    meaning = "The adversaries pull the same way, so neither learns from the other"
    remedies = (MIND_THE_SIGN,)

    below = Limit(100.0, "times the size of the first losses, below zero; in healthy games one loss is at 5 at most")

    def __init__(self) -> None:
        self._sizes: dict[int, float] = {}  # of the first losses of each
        self._since: dict[int, int] = {}  # when each was first below zero by more than that
        self._latest: dict[int, Loss] = {}

    def observe(self, view: FrameView) -> Judgement | None:
        loss = view.loss
        if loss is None or loss.actors != 2:
            return self.stay() if loss is None else self.end()
        if loss.seen <= FIRST_LOSSES:
            self._sizes[loss.actor] = max(abs(loss.first), abs(loss.start), 4 * loss.noise)
        size = self._sizes.get(loss.actor, np.inf)
        if loss.level < -size:
            self._since.setdefault(loss.actor, view.step)
        else:
            self._since.pop(loss.actor, None)
        self._latest[loss.actor] = loss
        both = list(self._latest.values())
        if len(both) != 2 or not all(one.level < -self.below * self._sizes.get(one.actor, np.inf) for one in both):
            return self.stay() if self.is_open and len(self._since) == 2 else self.end()
        return self.hold(None, lambda: self._describe(both))

    def _describe(self, both: list[Loss]) -> Judgement:
        evidence = tuple(
            Evidence("loss", None, one.level, one.start, "of one of two optimizers in turn, now and at the start")
            for one in both
        )
        summary = (
            f"Both losses of two alternating optimizers fall without end ({both[0].level:.2g}, {both[1].level:.2g}): "
            "they do not compete. Look for a term with the wrong sign."
        )
        return Judgement(Severity.SEVERE, (), max(self._since.values()), 0.85, summary, evidence)
