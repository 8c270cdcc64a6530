"""NUM003: a trained weight is NaN or infinite."""

from undertow.detect.engine import Condition, FrameView, Judgement, Shared, Stage
from undertow.detect.features.nonfinite_weights import NonfiniteWeights, evidence_of
from undertow.detect.features.remedies import LOWER_LEARNING_RATE, SKIP_BAD_STEPS
from undertow.detect.features.wording import name_layers
from undertow.schema import Remedy, Severity


class NonfiniteWeight(Condition):
    """A weight holds NaN or infinity.

    What it sees: The number of NaN and infinite elements of every weight after the optimizer's step. The layers listed
        are those hit at the first step at which any was.
    Why it is bad: A weight that is NaN stays NaN: every later output, loss and gradient is NaN too. The run cannot
        recover by itself, and every checkpoint saved from here on is lost.
    When it is wrong: The counts are exact. After a non-finite gradient this finding is the consequence, and is ranked
        below it.
    References: Wang et al., "DeepLocalize: Fault Localization for Deep Neural Networks", 2021 (arXiv 2103.03376).
    """

    code, variant, formerly = "NUM003", "nonfinite-weight", "weight"
    stage, is_exact = Stage.NONFINITE, True
    _weights = Shared(NonfiniteWeights)
    meaning = "Weights do not recover from that: every later output and checkpoint is lost"
    remedies = (
        Remedy(
            "restore-finite-weights",
            "Go back to a checkpoint whose weights are finite, and check it before training goes on.",
            'state = torch.load("checkpoint.pt", weights_only=True)\n'
            "assert all(torch.isfinite(value).all() for value in state.values())\n"
            "model.load_state_dict(state)",
            "Steps since that checkpoint are lost; they were lost already.",
            when_not="What made them non-finite is still there: mend that first.",
        ),
        LOWER_LEARNING_RATE,
        SKIP_BAD_STEPS,
    )

    def observe(self, view: FrameView) -> Judgement | None:
        weights = self._weights
        if not weights.is_informed:
            return None
        if weights.is_over:
            return self.end()
        return self.hold(True, lambda: self._describe(view)) if self.is_open or len(weights.trained) else None

    def _describe(self, view: FrameView) -> Judgement:
        layers = view.layout.in_order(self._weights.trained)
        summary = f"NaN or infinity in the weights of {name_layers(view.layout, layers)} after step {view.step}."
        return Judgement(Severity.CRITICAL, tuple(layers), view.step, 1.0, summary, evidence_of(view, layers))
