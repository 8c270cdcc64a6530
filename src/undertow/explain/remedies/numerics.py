"""NUM: what to change about values that stop being numbers."""

from __future__ import annotations

import re

from undertow.detect.features.remedies import (
    FIND_THE_OPERATION,
    GUARD_THE_OPERATION,
    KEEP_VALUES_IN_RANGE,
    SKIP_BAD_STEPS,
    SMALLER_LOSS_SCALE,
)
from undertow.explain.remedies.optimisation import LOWER_RATE
from undertow.schema.findings import Finding, Remedy

REMEDIES: tuple[Remedy, ...] = (
    GUARD_THE_OPERATION,
    FIND_THE_OPERATION,
    SKIP_BAD_STEPS,
    Remedy(
        "loss-in-log-space",
        "Compute the loss from logits in one fused function instead of exp, log or softmax by hand.",
        "loss = torch.nn.functional.cross_entropy(logits, target)\n"
        "log_probability = torch.log_softmax(logits, dim=-1)  # not log(softmax)",
        "None; the values are the same where both are finite.",
        when_not="The loss is fused already.",
    ),
    Remedy(
        "restore-finite-weights",
        "Go back to a checkpoint whose weights are finite, and check it before training goes on.",
        'state = torch.load("checkpoint.pt", weights_only=True)\n'
        "assert all(torch.isfinite(value).all() for value in state.values())\n"
        "model.load_state_dict(state)",
        "Steps since that checkpoint are lost; they were lost already.",
        when_not="What made them non-finite is still there: mend that first.",
    ),
    SMALLER_LOSS_SCALE,
    Remedy(
        "scale-the-loss",
        "Train in bfloat16, or scale the loss, so that small gradients survive in half precision.",
        'scaler = torch.amp.GradScaler("cuda")\nscaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()',
        "None; steps are skipped now and then while the scale is found.",
        when_not="The training is in float32 or bfloat16 throughout.",
    ),
    KEEP_VALUES_IN_RANGE,
)

BY_CODE: dict[str, tuple[str, ...]] = {
    "NUM001": ("guard-the-operation", "find-the-operation", "skip-bad-steps", "smaller-loss-scale", LOWER_RATE),
    "NUM002": ("loss-in-log-space", LOWER_RATE, "guard-the-operation", "find-the-operation"),
    "NUM003": ("restore-finite-weights", LOWER_RATE, "skip-bad-steps"),
    "NUM004": ("guard-the-operation", "keep-values-in-range", "find-the-operation", LOWER_RATE),
    "NUM005": ("scale-the-loss", "keep-values-in-range", "smaller-loss-scale", "keep-a-float32-master-copy"),
}

# Operations that make a non-finite value of a finite one.
_RISKY = re.compile(r"operation (Div|Sqrt|Rsqrt|Log|Log2|Log10|Log1P|Reciprocal|Pow|Acos|Asin|Atanh)\b")


def fitting(finding: Finding) -> tuple[str, ...] | None:
    every = BY_CODE[finding.code]
    shown = {evidence.quantity for evidence in finding.evidence}
    match finding.code:
        case "NUM001" if "step_skipped" in shown:
            # A scaler that works needs nothing; one that is stuck needs a lower scale first.
            return (
                ("smaller-loss-scale", "guard-the-operation", "find-the-operation") if finding.severity.is_alarm else ()
            )
        case "NUM001":
            return every[:3]
        case "NUM002" | "NUM003" if not finding.severity.is_alarm:
            return ()
        case "NUM002" if any(_RISKY.search(evidence.how) for evidence in finding.evidence):
            return ("guard-the-operation", *(name for name in every if name != "guard-the-operation"))
        case "NUM004":
            return every[:3]
        case "NUM005" if "loss scaler" in finding.summary:
            return ("smaller-loss-scale",)
        case "NUM005" if "rounded away" in finding.summary:
            return ("keep-a-float32-master-copy",)
        case "NUM005" if "overflow" in finding.summary:
            return ("keep-values-in-range", "smaller-loss-scale")
        case "NUM005":
            return ("scale-the-loss",)
        case _:
            return None
