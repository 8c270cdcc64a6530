"""LSS: what to change about the loss."""

from __future__ import annotations

from undertow.detect.features.remedies import AVERAGE_THE_MICRO_BATCHES
from undertow.schema.findings import Finding, Remedy

REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        "pass-logits",
        "Give the loss the logits: cross-entropy takes the softmax, and BCEWithLogits the sigmoid, itself.",
        "logits = model(inputs)  # no softmax, no sigmoid at the end\n"
        "loss = torch.nn.functional.cross_entropy(logits, targets)\n"
        "probabilities = logits.softmax(-1)  # only where you need them",
        "Predictions elsewhere that expect probabilities need the softmax there.",
        when_not="The loss is one that takes probabilities, such as KL divergence in distillation.",
    ),
    Remedy(
        "pass-probabilities",
        "Give the loss what it expects: log_softmax before NLLLoss, a sigmoid before BCELoss, or use the fused one.",
        "loss = torch.nn.functional.cross_entropy(logits, targets)\n"
        "# two classes: binary_cross_entropy_with_logits(logits, targets)",
        "None.",
        when_not="The values are log-probabilities already.",
    ),
    Remedy(
        "softmax-over-classes",
        "Take the softmax over the dimension of the classes, or let cross_entropy do it: it knows which one.",
        "# classes are dimension 1\n"
        "loss = torch.nn.functional.cross_entropy(logits, targets)\n"
        "# by hand: nll_loss(logits.log_softmax(dim=1), targets)",
        "None.",
        when_not="The classes really are in another dimension: move them to dimension 1 then.",
    ),
    Remedy(
        "match-the-shapes",
        "Give prediction and target the same shape before the loss.",
        "assert prediction.squeeze(-1).shape == target.shape\n"
        "loss = torch.nn.functional.mse_loss(prediction.squeeze(-1), target)",
        "None.",
        when_not="Every prediction is meant to be compared with every target.",
    ),
    Remedy(
        "mind-the-sign",
        "Minimise the error itself: turn the sign of the loss, and give it targets in the range it expects.",
        "loss = torch.nn.functional.cross_entropy(logits, targets)\nloss.backward()",
        "None.",
        when_not="It is a reward or a likelihood, which is meant to grow.",
    ),
    Remedy(
        "shift-the-targets",
        "Ask for the next token: the targets are the tokens one place further than the inputs.",
        "inputs, targets = tokens[:, :-1], tokens[:, 1:]\n"
        "logits = model(inputs).flatten(0, 1)\n"
        "loss = torch.nn.functional.cross_entropy(logits, targets.flatten())",
        "None.",
        when_not="The library shifts them itself (models that take `labels`).",
    ),
    Remedy(
        "free-the-output",
        "Let the model end in a linear layer, or bring the targets into the range of the function it ends in.",
        "prediction = head(hidden)  # no ReLU, sigmoid or tanh behind it\n"
        "loss = torch.nn.functional.mse_loss(prediction, targets)",
        "Predictions can then be anything, also below zero.",
        when_not="The targets themselves are wrong: then mend those.",
    ),
    AVERAGE_THE_MICRO_BATCHES,
    Remedy(
        "divide-by-all-rows",
        "Sum the losses of all rows of a step, and divide once by their number.",
        "cross_entropy = torch.nn.functional.cross_entropy\n"
        "rows = sum(len(targets) for _, targets in parts)  # without padding\n"
        "for inputs, targets in parts:\n"
        "    loss = cross_entropy(model(inputs), targets, reduction='sum')\n"
        "    (loss / rows).backward()",
        "The rows of a step must be counted before its first backward pass.",
        when_not="Small micro-batches are meant to weigh as much as large ones.",
    ),
)

BY_CODE: dict[str, tuple[str, ...]] = {
    "LSS001": ("pass-logits", "pass-probabilities", "softmax-over-classes"),
    "LSS002": ("match-the-shapes",),
    "LSS003": ("mind-the-sign", "shift-the-targets", "free-the-output"),
    "LSS004": ("average-the-micro-batches", "divide-by-all-rows"),
}


def fitting(finding: Finding) -> tuple[str, ...] | None:
    if finding.code == "LSS004":
        unequal = any(evidence.quantity == "micro_batch_spread" for evidence in finding.evidence)
        return ("divide-by-all-rows",) if unequal else ("average-the-micro-batches",)
    if finding.code == "LSS003":
        if any(evidence.quantity == "targets_beyond_reach" for evidence in finding.evidence):
            return ("mind-the-sign",) if "binary" in finding.summary else ("free-the-output",)
        return ("shift-the-targets",) if "shift" in finding.summary else ("mind-the-sign",)
    if finding.code == "LSS001":
        if "another dimension" in finding.summary:
            return ("softmax-over-classes",)
        reversed_ = any(e.quantity == "loss_input_is_logit" and e.value for e in finding.evidence)
        return ("pass-probabilities",) if reversed_ else ("pass-logits",)
    return None
