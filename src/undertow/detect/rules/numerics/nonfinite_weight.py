"""NUM003: a weight is NaN or infinite."""

from collections.abc import Sequence

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, LayerValues, Stage, changed, where
from undertow.detect.features.remedies import KEEP_A_FLOAT32_MASTER_COPY, LOWER_LEARNING_RATE, SKIP_BAD_STEPS
from undertow.detect.features.wording import count_of, name_layers
from undertow.schema import Evidence, Finding, GradientState, Remedy, Severity


class NonfiniteWeight(Condition):
    """A weight holds NaN or infinity.

    What it sees: The number of NaN and infinite elements of every weight after the optimizer's step. The layers listed
        are those hit at the first step at which any was. Of frozen parameters it is a remark, never an alarm.
    Why it is bad: A weight that is NaN stays NaN: every later output, loss and gradient is NaN too. The run cannot
        recover by itself, and every checkpoint saved from here on is lost.
    When it is wrong: The counts are exact. After a non-finite gradient this finding is the consequence, and is ranked
        below it. A mask kept as a frozen parameter holds minus infinity by design; a frozen layer loaded from a damaged
        checkpoint looks the same, and its outputs then turn up as NUM004.
    References: Wang et al., "DeepLocalize: Fault Localization for Deep Neural Networks", 2021 (arXiv 2103.03376).
    """

    code, variant, formerly = "NUM003", "nonfinite-weight", "weight frozen nonfinite-frozen-parameter"
    places = ("initialisation", "overwritten")
    stage, is_exact = Stage.NONFINITE, True
    needs = frozenset({"weight", "gradient"})
    wakes_on = where("weight_nonfinite_count", lambda counts: counts > 0) | changed("gradient_state")
    meaning = "Weights do not recover from that: every later output and checkpoint is lost"
    remedies = (
        Remedy(
            "restore-finite-weights",
            "Go back to a checkpoint whose weights are finite, and check it before training goes on.",
            'state = torch.load("checkpoint.pt", weights_only=True)\n'
            "assert all(torch.isfinite(value).all() for value in state.values())\n"
            "model.load_state_dict(state)",
            "Steps since that checkpoint are lost; they were lost already.",
            when_not="What made them non-finite is still there: fix that first.",
        ),
        LOWER_LEARNING_RATE,
        SKIP_BAD_STEPS,
        KEEP_A_FLOAT32_MASTER_COPY,
    )

    _is_frozen = LayerValues(np.bool_, False)
    _is_bad = LayerValues(np.bool_, False)

    @classmethod
    def remedies_for(cls, finding: Finding) -> Sequence[Remedy]:
        """Weights in half precision overflow, and their moments underflow, before anything else is to blame."""
        return (KEEP_A_FLOAT32_MASTER_COPY, *cls.remedies[:-1])

    def observe(self, view: FrameView) -> Judgement | None:
        states, holders = view.row("gradient_state"), view.ids("gradient")
        if states is not None and holders is not None:
            known = ~np.isnan(states)
            self._is_frozen[holders[known]] = states[known] == GradientState.FROZEN
        counts, ids = view.row("weight_nonfinite_count"), view.ids("weight")
        if counts is None or ids is None:
            return None
        measured, hit = ~np.isnan(counts), counts > 0
        self._is_bad[ids[measured]] = hit[measured]
        if not self._is_bad.any():
            return self.end()
        if not hit.any():  # another optimizer's frame says nothing about the weights that were hit
            return None
        trained = ids[hit & ~self._is_frozen[ids] & view.layout.is_trainable[ids]]
        is_critical = self.judgement is not None and self.judgement.severity is Severity.CRITICAL
        if len(trained) or is_critical:
            return self.hold("trained", lambda: _describe(view, view.layout.in_order(trained)))
        return self.hold("frozen", lambda: _describe(view, view.layout.in_order(ids[hit]), are_frozen=True))


def _describe(view: FrameView, layers: list[int], are_frozen: bool = False) -> Judgement:
    layout, counts = view.layout, view.all_layers("weight_nonfinite_count")
    evidence = tuple(
        Evidence("weight_nonfinite_count", layout.path(i), float(counts[i]), 0.0,
                 f"NaN or infinite elements of {layout.layers[i].parameter_count:,} after step {view.step}")
        for i in layers[:5]
    )  # fmt: skip
    named = name_layers(layout, layers)
    if are_frozen:
        summary = f"{count_of(len(layers), 'frozen parameter')} hold NaN or infinity ({named}); a mask, perhaps."
        return Judgement(Severity.INFO, tuple(layers), view.step, 0.8, summary, evidence)
    summary = f"NaN or infinity in the weights of {named} after step {view.step}."
    return Judgement(Severity.CRITICAL, tuple(layers), view.step, 1.0, summary, evidence)
