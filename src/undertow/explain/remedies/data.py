"""DAT: what to change about inputs, targets and batches."""

from __future__ import annotations

from undertow.schema.findings import Finding, Remedy

REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        "standardise-the-inputs",
        "Bring the inputs to mean zero and standard deviation one, with statistics of the training set.",
        "mean, std = inputs.mean(0), inputs.std(0).clamp_min(1e-6)\n"
        "inputs = (inputs - mean) / std  # the same two at validation",
        "The same statistics must be kept for validation and use.",
        when_not="A normalisation layer already follows the inputs.",
    ),
    Remedy(
        "inspect-the-batch",
        "Look at the batch of the step at which it jumped, and leave such batches out.",
        "largest = inputs.abs().max()\n"
        "if not torch.isfinite(largest) or largest > 100:\n"
        "    print('unusual batch', index, float(largest))\n"
        "    continue",
        "What is left out is not learnt: mend the data where it comes from.",
        when_not="Every batch looks like that: then the scale of the inputs is the fault.",
    ),
    Remedy(
        "scale-the-targets",
        "Standardise the targets for training, and scale predictions back for use.",
        "mean, std = targets.mean(0), targets.std(0).clamp_min(1e-6)\n"
        "loss = torch.nn.functional.mse_loss(output, (targets - mean) / std)\n"
        "prediction = output * std + mean",
        "The loss is in other units: compare it with care.",
        when_not="The targets are classes or counts with a loss of their own.",
    ),
    Remedy(
        "check-the-labels",
        "Look at a few samples beside their labels: inputs and labels must be shuffled and sliced together.",
        "inputs, targets = next(iter(loader))\n"
        "for sample, target in zip(inputs[:8], targets[:8]):\n"
        "    print(target, sample.flatten()[:6])",
        "None; it only looks.",
        when_not="The task is known to be hard, and the loss needs more steps to move.",
    ),
    Remedy(
        "shuffle-the-data",
        "Shuffle the data, so that every batch holds a mixture.",
        "loader = torch.utils.data.DataLoader(\n    dataset, batch_size=64, shuffle=True\n)",
        "None; a curriculum that was meant is lost.",
        when_not="The order carries meaning, as in a stream or a curriculum.",
    ),
    Remedy(
        "fit-the-table-to-the-data",
        "Make the table or the last layer as large as what occurs, or check how ids and labels are made.",
        "print(int(ids.min()), int(ids.max()), len(ids.unique()))\nprint(targets.bincount())",
        "None; it only looks.",
        when_not="The vocabulary is large and the run is short: rare rows have not come yet.",
    ),
)

BY_CODE: dict[str, tuple[str, ...]] = {
    "DAT001": ("standardise-the-inputs",),
    "DAT002": ("inspect-the-batch", "guard-against-spikes"),
    "DAT003": ("scale-the-targets",),
    "DAT004": ("check-the-labels", "overfit-one-batch"),
    "DAT005": ("shuffle-the-data",),
    "DAT006": ("fit-the-table-to-the-data",),
}


def fitting(finding: Finding) -> tuple[str, ...] | None:
    return None
