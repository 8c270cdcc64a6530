"""OPT007: the learning rate jumps, and the loss follows."""

import math
from dataclasses import replace

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.learning_rate import LearningRate
from undertow.detect.features.remedies import LOWER_LEARNING_RATE
from undertow.schema import Evidence, Remedy, Severity


class LearningRateJump(Condition):
    """The learning rate jumps far above what it had been, and the loss follows.

    What it sees: A rate five times above the peak that had stood for ten steps, and within fifteen steps a loss that is
        not finite, or far above its noise and half as high again as before the jump.
    Why it is bad: Steps several times as long as those the model was trained with undo what it has learnt.
    When it is wrong: Warm-up rises in small steps, and restarts go up to an earlier peak: neither is reported, nor is a
        jump that the loss tolerates.
    References: Smith, "Cyclical Learning Rates for Training Neural Networks", 2015 (arXiv 1506.01186).
    """

    code, variant, formerly = "OPT007", "learning-rate-jump", "leap"
    places = ("rate change",)
    stage = Stage.OPTIMIZER
    _rate = Shared(LearningRate)
    meaning = "The learning rate, not the model, decides how this training goes"
    remedies = (
        Remedy(
            "remove-the-jump",
            "Take out what raises the learning rate at that step: a restart, a new stage, a reloaded optimizer.",
            "for group in optimizer.param_groups:\n    print(step, group['lr'])  # around the jump",
            "None; it only looks.",
            when_not="The restart is meant and the loss recovers from it.",
        ),
        LOWER_LEARNING_RATE,
    )
    follows_within = Limit.memory(15, "steps after a jump: a loss that moves later moves for another reason")
    rise = Limit(6.0, "deviations of the loss; healthy ones under a constant rate: below 4, 7 with random depth")
    rises_to = Limit(1.5, "times the level before the jump")

    def observe(self, view: FrameView) -> Judgement | None:
        history, loss = self._rate.history, view.loss
        since = view.step - history.jump_step
        if history.jump_step < 0 or since <= 0:
            return None
        layers, known = self._rate.moved_layers(), self.judgement
        if known is not None:  # it holds for as long as the rate stays up there
            if not history.now > history.peak / 2:
                return self.end()
            return self.hold(layers, lambda: replace(known, layers=layers or known.layers))
        if since > self.follows_within:
            return None
        if loss is None:
            is_broken = "loss" in view.frame.scalars and not math.isfinite(view.scalar("loss"))
        elif loss.positive:
            is_broken = loss.jump > self.rise and loss.value > self.rises_to * self._rate.level_before_jump
        else:
            is_broken = loss.jump > 2 * self.rise
        return self.hold(layers, lambda: self._describe(view, layers)) if is_broken else None

    def _describe(self, view: FrameView, layers: tuple[int, ...]) -> Judgement:
        history = self._rate.history
        before = history.peak / history.jump_factor
        how = f"learning rate since step {history.jump_step}, and before"
        evidence = [Evidence("lr", None, history.now, before, how)]
        if view.loss is not None:
            how = f"loss at step {view.step}, and before the jump"
            evidence.append(Evidence("loss", None, view.loss.value, self._rate.level_before_jump, how))
        summary = (
            f"The learning rate jumped from {before:.3g} to {history.now:.3g} at step {history.jump_step}, and the "
            "loss followed."
        )
        return Judgement(Severity.SEVERE, layers, history.jump_step, 0.93, summary, tuple(evidence))
