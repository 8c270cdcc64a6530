"""NUM002: the loss is NaN or infinite."""

import math
from collections.abc import Sequence

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, Stage, where_scalar
from undertow.detect.features.nonfinite_outputs import entered_with_the_data, first_nonfinite_output
from undertow.detect.features.remedies import (
    CLEAN_THE_INPUTS,
    FIND_THE_OPERATION,
    GUARD_THE_OPERATION,
    LOWER_LEARNING_RATE,
)
from undertow.schema import Evidence, Finding, Remedy, Severity


class NonfiniteLoss(Condition):
    """The loss is NaN or infinite.

    What it sees: The loss that `backward` was called on, without any loss scale. Where outputs were measured at that
        step, the first module in forward order with a non-finite one is named; otherwise the journal names the
        operation, found by walking the graph of that very loss.
    Why it is bad: Every gradient of a NaN loss is NaN, so the next optimizer step destroys the weights.
    When it is wrong: A loss that is infinite by definition for some batches (a masked log-likelihood with an empty
        mask) is still one that no optimizer can follow. Steps that a loss scaler skips are only noted.
    References: Goodfellow, Bengio, Courville, "Deep Learning", 2016, section 4.1 (overflow and underflow).
    """

    code, variant, formerly = "NUM002", "nonfinite-loss", "loss skipped nonfinite-loss-skipped"
    places = ("unsafe",)
    stage, is_exact = Stage.NONFINITE, True
    meaning = "Every gradient of such a loss is NaN too, so the next step destroys the weights"
    remedies = (
        CLEAN_THE_INPUTS,
        Remedy(
            "loss-in-log-space",
            "Compute the loss from logits in one fused function instead of exp, log or softmax by hand.",
            "loss = torch.nn.functional.cross_entropy(logits, target)\n"
            "log_probability = torch.log_softmax(logits, dim=-1)  # not log(softmax)",
            "None; the values are the same where both are finite.",
            when_not="The loss is fused already.",
        ),
        LOWER_LEARNING_RATE,
        GUARD_THE_OPERATION,
        FIND_THE_OPERATION,
    )
    needs = frozenset({"loss"})
    wakes_on = where_scalar("loss", lambda loss: ~np.isfinite(loss))

    def observe(self, view: FrameView) -> Judgement | None:
        loss = view.frame.scalars.get("loss")
        if loss is None:
            return None
        if math.isfinite(loss):
            return self.end()
        is_critical = self.judgement is not None and self.judgement.severity is Severity.CRITICAL
        is_remark = view.skipped and not is_critical  # the weights never saw its gradient
        return self.hold(is_remark, lambda: _describe(view, loss, is_remark))

    @classmethod
    def remedies_for(cls, finding: Finding) -> Sequence[Remedy]:
        shown = {evidence.quantity for evidence in finding.evidence}
        if "nonfinite_input" in shown:
            return (CLEAN_THE_INPUTS, FIND_THE_OPERATION)
        if shown.isdisjoint(("unsafe_operation", "first_nonfinite")):
            return cls.remedies[1:]
        # An operation that is known made it of finite values: that comes first.
        return (GUARD_THE_OPERATION, *(remedy for remedy in cls.remedies[1:] if remedy is not GUARD_THE_OPERATION))


def _describe(view: FrameView, loss: float, is_remark: bool) -> Judgement:
    summary = f"The loss turned {'NaN' if math.isnan(loss) else 'infinite'} at step {view.step}"
    summary += "; the loss scaler skipped the step." if is_remark else "."
    evidence: tuple[Evidence, ...] = (Evidence("loss", None, loss, None, f"the loss of step {view.step} is {loss}"),)
    output, layers = first_nonfinite_output(view), ()
    module = None if output is None or output.layer is None else view.layout.layers.get(output.layer)
    if output is not None and module is not None:
        layers, evidence = (module.id,), (*evidence, output)
        weights = view.row("weight_nonfinite_count")
        if weights is not None and not (weights > 0).any():
            evidence += entered_with_the_data(view.layout, module.id)
    return Judgement(Severity.INFO if is_remark else Severity.CRITICAL, layers, view.step, 1.0, summary, evidence)
