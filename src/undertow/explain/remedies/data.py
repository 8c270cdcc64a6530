"""DAT: what to change about inputs, targets and batches."""

from __future__ import annotations

from undertow.detect.features.remedies import (
    CHECK_THE_LABELS,
    INSPECT_THE_BATCH,
    SHUFFLE_THE_DATA,
    STANDARDISE_THE_INPUTS,
)
from undertow.schema.findings import Finding, Remedy

REMEDIES: tuple[Remedy, ...] = (
    STANDARDISE_THE_INPUTS,
    INSPECT_THE_BATCH,
    Remedy(
        "scale-the-targets",
        "Standardise the targets for training, and scale predictions back for use.",
        "mean, std = targets.mean(0), targets.std(0).clamp_min(1e-6)\n"
        "loss = torch.nn.functional.mse_loss(output, (targets - mean) / std)\n"
        "prediction = output * std + mean",
        "The loss is in other units: compare it with care.",
        when_not="The targets are classes or counts with a loss of their own.",
    ),
    CHECK_THE_LABELS,
    SHUFFLE_THE_DATA,
)

BY_CODE: dict[str, tuple[str, ...]] = {
    "DAT001": ("standardise-the-inputs",),
    "DAT002": ("inspect-the-batch", "guard-against-spikes"),
    "DAT003": ("scale-the-targets",),
    "DAT004": ("check-the-labels", "overfit-one-batch"),
}


def fitting(finding: Finding) -> tuple[str, ...] | None:
    return None
