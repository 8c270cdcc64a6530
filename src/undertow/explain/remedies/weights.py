"""WGT: what to change about weights."""

from __future__ import annotations

from undertow.detect.features.remedies import DECAY_THE_WEIGHTS
from undertow.schema.findings import Finding, Remedy

REMEDIES: tuple[Remedy, ...] = (
    DECAY_THE_WEIGHTS,
    Remedy(
        "stay-close-to-the-start",
        "Fine-tune with a smaller learning rate, or with adapters, so that what was learnt before is kept.",
        "$build_lower_rate",
        "The new task is learnt more slowly.",
        when_not="You train from scratch: weights are meant to move.",
    ),
    Remedy(
        "tie-the-weights",
        "Let both layers use one tensor, before the optimizer is built.",
        "model.head.weight = model.embedding.weight\noptimizer = torch.optim.AdamW(model.parameters(), lr=$rate)",
        "The model has fewer parameters, and checkpoints of the untied one need care.",
        when_not="The copy is only a start, and the two are meant to part.",
    ),
)

BY_CODE: dict[str, tuple[str, ...]] = {
    "WGT005": ("lower-the-weight-decay", "let-only-the-optimizer-write"),
    "WGT006": ("stay-close-to-the-start", "tie-the-weights", "let-only-the-optimizer-write"),
}


def fitting(finding: Finding) -> tuple[str, ...] | None:
    if finding.code == "WGT005":
        if "pressed" in finding.summary:  # at once, so not by decay alone
            return ("let-only-the-optimizer-write", "lower-the-weight-decay")
        return ("lower-the-weight-decay",)
    if finding.code == "WGT006" and ("set anew" in finding.summary or "set back" in finding.summary):
        return ("let-only-the-optimizer-write",)
    if finding.code == "WGT006":  # the head and the table it was copied from; any number of layers that forget
        return ("tie-the-weights",) if "copy" in finding.summary else ("stay-close-to-the-start",)
    return None
