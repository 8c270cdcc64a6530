"""OPT008: another optimizer in every epoch."""

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.rebuilt_optimizer import BUILD_THE_OPTIMIZER_ONCE, RebuiltOptimizer
from undertow.schema import Evidence, Severity


class OptimizerRebuiltEveryEpoch(Condition):
    """The optimizer is built anew at even intervals, as at the top of a loop over epochs.

    What it sees: Three times, at even intervals and with the same rate, another optimizer object for the same
        parameters.
    Why it is bad: Momentum and second moment are lost each time; with intervals of more than 25 steps most of it is
        found again.
    When it is wrong: Rebuilding the optimizer between phases is fine, once or twice, or with another rate each time, or
        together with the model. Plain SGD has no memory to lose.
    References: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2014 (arXiv 1412.6980).
    """

    code, variant, formerly = "OPT008", "optimizer-rebuilt-every-epoch", "again"
    stage, is_exact, is_standing = Stage.PROGRAM, True, True
    pace = ("weight", 5)
    _optimizer = Shared(RebuiltOptimizer)
    meaning = "The optimizer forgets again and again what the steps before had taught it"
    remedies = (BUILD_THE_OPTIMIZER_ONCE,)
    harmful_within = Limit(25, "steps between two of them: a momentum of 0.9 remembers ten")

    def observe(self, view: FrameView) -> Judgement | None:
        is_rebuilt_always = "optimizer-rebuilt-every-step" in self._optimizer.open_variants
        if not self._optimizer.has_memory or is_rebuilt_always or not self._optimizer.is_regular:
            return self.stay()
        if view.loss is not None and view.loss.actors > 1:
            return self.stay()
        return self.hold(None, self._describe)

    def _describe(self) -> Judgement:
        steps, every = self._optimizer.steps, self._optimizer.interval
        how = f"another optimizer object for the same parameters, every {every:.0f} steps, the latest at {steps[-1]}"
        evidence = (Evidence("optimizer_rebuilt", None, 1.0, 0.0, how),)
        summary = (
            f"The optimizer is rebuilt every {every:.0f} steps, as inside a loop over epochs: its momentum and its "
            "second moment are lost each time."
        )
        severity = Severity.MODERATE if every <= self.harmful_within else Severity.MILD
        return Judgement(severity, (), steps[0], 0.8, summary, evidence)
