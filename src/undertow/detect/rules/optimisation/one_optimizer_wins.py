"""OPT007: of two optimizers in turn one has won."""

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.learning_rate import LearningRate
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.matrices import matrices_of, middle
from undertow.schema import Evidence, LossKind, Remedy, Severity


class OneOptimizerWins(Condition):
    """Of two optimizers in turn (a GAN's), one is far ahead and has won.

    What it sees: That the one with a ten times higher rate (three times, where it has made steps of a tenth of its
        weights) has next to nothing left of its loss, or little while the other's has grown. At any rates, that nothing
        is left of one loss and the other's has risen by half.
    Why it is bad: Against a perfect adversary there is almost no gradient left to follow: the other side stops
        learning.
    When it is wrong: A critic of values learns its targets without harm to the actor and is left out. A critic that is
        trained to convergence on purpose is reported.
    References: Arjovsky and Bottou, "Towards Principled Methods for Training Generative Adversarial Networks", 2017
        (arXiv 1701.04862).
    """

    code, variant, formerly = "OPT007", "one-optimizer-wins", "unequal"
    places = ("optimizer",)
    stage = Stage.OPTIMIZER
    _rate = Shared(LearningRate)
    meaning = "The learning rate, not the model, decides how this training goes"
    remedies = (
        Remedy(
            "balance-the-optimizers",
            "Bring the two learning rates to the same order, or let the side that falls behind step more often.",
            "layer = $layer\n"
            "for group in optimizer.param_groups:  # of the one that holds it\n"
            "    group['lr'] = $even_rate",
            "The balance shifts at once: watch both losses.",
            when_not="One side is meant to be ahead, as a critic that is trained to convergence.",
        ),
    )
    unequal = Limit(10.0, "times the other's rate; recipes for adversaries use up to 5")
    unequal_with_long_steps = Limit(3.0, "times the other's rate, where steps are long")
    long_step = Limit(0.1, "of the weights, in one step, of half of the matrices")
    usual_step = Limit(0.005, "of the weights: the middle of healthy trainings; the one farther from it is at fault")
    far = Limit(0.1, "of the usual step: it hardly moves")
    won_to = Limit(0.3, "of its first loss, while the other's has grown")
    lost_to = Limit(1.5, "times its first loss")
    won_alone_to = Limit(0.15, "of its first loss, whatever the other's does")
    won_wholly_to = Limit(0.01, "of its first loss, at whatever rates")
    risen_by = Limit(0.5, "of its first loss")
    patience = Limit.plan(15, "losses in a row: adversaries take turns at being ahead")

    def __init__(self) -> None:
        self._losses: dict[int, Loss] = {}  # the latest of each optimizer
        self._kinds: dict[int, float] = {}
        self._steps: dict[int, float] = {}  # update over weight, at the latest measured step
        self._longest: dict[int, float] = {}
        self._won_for = 0

    def observe(self, view: FrameView) -> Judgement | None:
        loss, actor, rates = view.loss, self._rate.actor, self._rate.rates
        if loss is None or loss.actors != 2:
            return None
        self._losses[actor] = loss
        kind = view.scalar("loss_kind")
        if kind == kind:
            self._kinds[actor] = kind
        step = middle(matrices_of(view.layout).values(view, "update_ratio"))
        if step > 0:
            self._steps[actor] = step
            self._longest[actor] = max(step, self._longest.get(actor, 0.0))
        if len(self._losses) != 2 or self._losses.keys() != rates.keys():
            return None
        slow, fast = sorted(rates, key=lambda one: rates[one].now)
        has_long_steps = self._longest.get(fast, 0.0) > self.long_step
        factor = self.unequal_with_long_steps if has_long_steps else self.unequal
        is_unequal = rates[fast].now > factor * rates[slow].now > 0
        winner, loser = self._losses[fast], self._losses[slow]
        has_grown = winner.remaining < self.won_to and loser.remaining > self.lost_to
        has_won = is_unequal and (has_grown or winner.remaining < self.won_alone_to)
        if not has_won:
            slow, fast = sorted(self._losses, key=lambda one: self._losses[one].remaining < self.won_wholly_to)
            has_won = self._has_won_wholly(slow, fast)
        self._won_for = self._won_for + 1 if has_won else 0
        if self._won_for < self.patience:
            return self.stay() if is_unequal or has_won else self.end()
        return self.hold(None, lambda: self._describe(view.step, slow, fast))

    def _has_won_wholly(self, loser: int, winner: int) -> bool:
        """Nothing is left of its loss, and the other's rose: a task that is learnt leaves the other's alone."""
        lost = self._losses[loser]
        has_risen = lost.level - lost.start > self.risen_by * max(abs(lost.start), lost.noise)
        is_of_values = self._kinds.get(winner) in (LossKind.MEAN_SQUARE, LossKind.ABSOLUTE)
        return has_risen and self._losses[winner].remaining < self.won_wholly_to and not is_of_values

    def _describe(self, step: int, slow: int, fast: int) -> Judgement:
        winner, loser, rates = self._losses[fast], self._losses[slow], self._rate.rates
        is_slow = self._is_slow_one_to_blame(slow, fast)
        mine, other = (slow, fast) if is_slow else (fast, slow)
        is_off = is_slow or rates[fast].now > rates[slow].now
        how = "learning rate, against that of the other of the two alternating optimizers"
        evidence = (
            Evidence("lr", None, rates[mine].now, rates[other].now if is_off else None, how),
            Evidence("loss", None, winner.level, winner.start, "of the faster one, now and at the start"),
            Evidence("loss", None, loser.level, loser.start, "of the slower one, now and at the start"),
        )
        factor = rates[fast].now / rates[slow].now
        layers = self._rate.stepped.get(mine, ())
        how = f"its learning rate is {factor:.0f}× the other's" if factor > 1 else "at no higher learning rate"
        summary = (
            f"One of two alternating optimizers has won (loss {winner.level:.2g}; {how}): the other, at "
            f"{loser.level:.2g}, gets almost no gradient."
        )
        if is_slow:
            summary = (
                f"One of two alternating optimizers hardly moves, at 1/{factor:.0f} of the other's learning rate: the "
                f"other one has won (loss {winner.level:.2g})."
            )
        first = max(step - 2 * self._won_for, 0)
        return Judgement(Severity.MODERATE, layers, first, 0.75, summary, evidence)

    def _is_slow_one_to_blame(self, slow: int, fast: int) -> bool:
        """By the length of their steps: is the one farther below the usual than the other one above it?"""
        short, long = self._steps.get(slow), self._steps.get(fast)
        if short is None or long is None or not self._rate.rates[slow].now < self._rate.rates[fast].now:
            return False
        return short < self.far * self.usual_step and short * max(long, self._longest[fast]) < self.usual_step**2
