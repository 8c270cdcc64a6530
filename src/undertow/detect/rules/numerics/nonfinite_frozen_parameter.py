"""NUM003: a frozen parameter is NaN or infinite."""

from undertow.detect.engine import Condition, FrameView, Judgement, Shared, Stage
from undertow.detect.features.nonfinite_weights import NonfiniteWeights, evidence_of
from undertow.detect.features.wording import count_of, name_layers
from undertow.schema import Severity


class NonfiniteFrozenParameter(Condition):
    """A frozen parameter holds NaN or infinity, as an attention mask does.

    What it sees: NaN and infinite elements of parameters that no gradient reaches because they are frozen.
    Why it is bad: It mostly is not: a mask kept as a parameter holds minus infinity by design. This is a remark, never
        an alarm.
    When it is wrong: A frozen layer loaded from a damaged checkpoint looks the same; its outputs then turn up as
        NUM004.
    References: Wang et al., "DeepLocalize: Fault Localization for Deep Neural Networks", 2021 (arXiv 2103.03376).
    """

    code, variant, formerly = "NUM003", "nonfinite-frozen-parameter", "frozen"
    stage, is_exact = Stage.NONFINITE, True
    _weights = Shared(NonfiniteWeights)
    meaning = "The parameter stays as it is; what is computed from it may be as meant"

    def observe(self, view: FrameView) -> Judgement | None:
        weights = self._weights
        if not weights.is_informed:
            return None
        if weights.is_over:
            return self.end()
        return self.hold(True, lambda: self._describe(view)) if self.is_open or len(weights.frozen) else None

    def _describe(self, view: FrameView) -> Judgement:
        layers = view.layout.in_order(self._weights.frozen)
        named = name_layers(view.layout, layers)
        summary = f"{count_of(len(layers), 'frozen parameter')} hold NaN or infinity ({named}); a mask, perhaps."
        return Judgement(Severity.INFO, tuple(layers), view.step, 0.8, summary, evidence_of(view, layers))
