"""NUM: what to change about values that stop being numbers."""

from __future__ import annotations

import re

from undertow.explain.remedies.optimisation import LOWER_RATE
from undertow.schema.findings import Finding, Remedy

REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        "guard-the-operation",
        "Keep the operation away from the point where its derivative is infinite.",
        "x.clamp_min(1e-6).sqrt()          # not x.sqrt()\n"
        "x.clamp_min(1e-6).log()           # not x.log()\n"
        "(x * x).sum(-1).add(1e-6).sqrt()  # not x.norm(dim=-1)",
        "An epsilon that is too large biases the result; 1e-6 is far below what training notices.",
        when_not="The values had grown out of all proportion before: then the training diverged.",
    ),
    Remedy(
        "find-the-operation",
        "Let autograd name the line that produced the value: run a few steps with anomaly detection.",
        "with torch.autograd.detect_anomaly():\n    loss = compute_loss(batch)\n    loss.backward()",
        "Training is several times slower while it is on; switch it off afterwards.",
        when_not="The value appears after days: go back to the last checkpoint before it first.",
    ),
    Remedy(
        "skip-bad-steps",
        "Do not step on a gradient that is not finite, so that one bad batch cannot destroy the weights.",
        "norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        "if torch.isfinite(norm):\n    optimizer.step()\noptimizer.zero_grad()",
        "It hides the cause: if many steps are skipped, the operation still needs its guard.",
        when_not="Every step would be skipped: then nothing is learnt.",
    ),
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
    Remedy(
        "smaller-loss-scale",
        "Let the scaler start lower, or train in bfloat16, which needs no loss scale.",
        'scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)\n'
        "# or, without any scaler:\n"
        'with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = compute_loss(batch)',
        "A scale that is too low lets small gradients round to zero in float16; bfloat16 does not have that problem.",
        when_not="The scaler skips a step now and then only: that is how it works.",
    ),
    Remedy(
        "scale-the-loss",
        "Train in bfloat16, or scale the loss, so that small gradients survive in half precision.",
        'scaler = torch.amp.GradScaler("cuda")\nscaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()',
        "None; steps are skipped now and then while the scale is found.",
        when_not="The training is in float32 or bfloat16 throughout.",
    ),
    Remedy(
        "keep-values-in-range",
        "Compute this part in float32 or bfloat16: float16 ends at 65,504.",
        'layer = $layer\nwith torch.autocast("cuda", enabled=False):\n    out = layer(x.float())',
        "A little slower there.",
        when_not="Values overflow float32, too: then the training diverged.",
    ),
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
