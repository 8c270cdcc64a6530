"""WGT: what to change about weights."""

from __future__ import annotations

from undertow.detect.features.remedies import DECAY_THE_WEIGHTS
from undertow.schema.findings import Finding, Remedy

REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        "initialise-at-random",
        "Initialise the weights at random: equal units stay equal for ever.",
        "layer = $layer\ntorch.nn.init.kaiming_uniform_(layer.weight, a=5**0.5)\ntorch.nn.init.zeros_(layer.bias)",
        "None.",
        when_not="It is the last layer of a residual branch that starts at zero on purpose.",
    ),
    DECAY_THE_WEIGHTS,
    Remedy(
        "look-at-the-outliers",
        "See which rows hold the outliers; a few input features or tokens usually make them.",
        "weight = $tensor\nprint(weight.detach().abs().amax(dim=1).topk(5))",
        "None; it only looks.",
        when_not="The weights are not going to be quantised and the training goes well.",
    ),
    Remedy(
        "stay-close-to-the-start",
        "Fine-tune with a smaller learning rate, or with adapters, so that what was learnt before is kept.",
        "$build_lower_rate",
        "The new task is learnt more slowly.",
        when_not="You train from scratch: weights are meant to move.",
    ),
    Remedy(
        "add-the-penalty",
        "Add the penalty on weights to the loss; it is subtracted.",
        "loss = task_loss + coefficient * penalty",
        "A coefficient chosen for the wrong sign may be too strong for the right one.",
        when_not="No penalty on weights is in the loss: then lower the learning rate.",
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
    "WGT001": ("decay-the-weights", "lower-the-learning-rate", "add-the-penalty"),
    "WGT002": ("initialise-at-random",),
    "WGT004": ("look-at-the-outliers", "decay-the-weights"),
    "WGT005": ("lower-the-weight-decay", "let-only-the-optimizer-write"),
    "WGT006": ("stay-close-to-the-start", "tie-the-weights", "let-only-the-optimizer-write"),
}


def fitting(finding: Finding) -> tuple[str, ...] | None:
    if finding.code == "WGT001":
        runaway = any(evidence.quantity == "update_ratio" for evidence in finding.evidence)
        return ("add-the-penalty", "decay-the-weights") if runaway else ("decay-the-weights", "lower-the-learning-rate")
    if finding.code == "WGT005":
        if "pressed" in finding.summary:  # at once, so not by decay alone
            return ("let-only-the-optimizer-write", "lower-the-weight-decay")
        return ("lower-the-weight-decay",)
    if finding.code == "WGT006" and ("set anew" in finding.summary or "set back" in finding.summary):
        return ("let-only-the-optimizer-write",)
    if finding.code == "WGT006":  # the head and the table it was copied from; any number of layers that forget
        return ("tie-the-weights",) if "copy" in finding.summary else ("stay-close-to-the-start",)
    return None
