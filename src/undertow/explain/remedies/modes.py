"""MOD: what to change about modes and normalisation."""

from __future__ import annotations

from undertow.schema.findings import Finding, Remedy

REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        "switch-to-training-mode",
        "Call model.train() before training, and again after every validation.",
        "model.eval()\nvalidate(model)\nmodel.train()  # before the next training step",
        "None.",
        when_not="Normalisation is frozen on purpose, as in fine-tuning on small batches.",
    ),
    Remedy(
        "keep-random-state",
        "Let checkpointing keep the state of the random generators.",
        "from torch.utils.checkpoint import checkpoint\n\n"
        "out = checkpoint(block, x, use_reentrant=False, preserve_rng_state=True)",
        "Saving the state takes a little time at every call.",
        when_not="Nothing inside of what is checkpointed draws random numbers.",
    ),
    Remedy(
        "use-group-norm",
        "Replace batch normalisation by GroupNorm or LayerNorm, or use a larger batch.",
        "norm = torch.nn.GroupNorm(num_groups=8, num_channels=channels)",
        "It is another architecture: old checkpoints do not fit.",
        when_not="Batches are large and only the last one of an epoch is small: drop that one.",
    ),
    Remedy(
        "usual-normalisation-settings",
        "Set eps and momentum of the normalisation back to their defaults.",
        "layer = $layer\nlayer.eps, layer.momentum = 1e-5, 0.1",
        "Running statistics take some hundred steps to settle.",
        when_not="They were chosen for a pretrained model that expects them.",
    ),
    Remedy(
        "less-dropout",
        "Lower the dropout rate to 0.5 at most; 0.1 is usual.",
        "layer = $layer\nlayer.p = 0.1",
        "More overfitting, if it was there to prevent it.",
        when_not="It drops whole inputs on purpose, as masked modelling does.",
    ),
)

BY_CODE: dict[str, tuple[str, ...]] = {
    "MOD001": ("switch-to-training-mode", "keep-random-state", "less-dropout"),
    "MOD002": ("use-group-norm", "usual-normalisation-settings"),
}


def fitting(finding: Finding) -> tuple[str, ...] | None:
    shown = {evidence.quantity for evidence in finding.evidence}
    if "dropout_rate" in shown:
        return ("less-dropout",)
    if "recomputed_apart" in shown:
        return ("keep-random-state",)
    if finding.code == "MOD001":
        return ("switch-to-training-mode",)
    if shown & {"norm_eps", "norm_momentum"} and "norm_values" not in shown:
        return ("usual-normalisation-settings",)
    return ("use-group-norm",)
