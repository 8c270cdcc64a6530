"""GRD: what to change about gradients."""

from __future__ import annotations

from undertow.detect.features.remedies import (
    ADD_NORMALISATION_OR_SHORTCUTS,
    CLEAR_GRADIENTS,
    CLIP_GRADIENTS,
    FREEZE_OPENLY,
    GUARD_AGAINST_SPIKES,
    USE_LARGER_BATCHES,
)
from undertow.schema.findings import Finding, Remedy

REMEDIES: tuple[Remedy, ...] = (
    FREEZE_OPENLY,
    Remedy(
        "break-the-zero",
        "Where two factors multiply (adapters, gates, tables), only one of them may start at zero: start this one at "
        "random.",
        "torch.nn.init.normal_($tensor, std=0.02)",
        "None: the product still starts at zero.",
        when_not="Only one factor is zero: its gradient is there from the second step on.",
    ),
    Remedy(
        "remove-the-mask",
        "Look for a hook, mask or in-place multiplication that erases this gradient.",
        "for name, module in model.named_modules():\n"
        "    print(name, module._forward_hooks, module._backward_hooks)\n"
        "for name, parameter in model.named_parameters():\n"
        "    print(name, parameter._backward_hooks)",
        "None; it only looks.",
    ),
    CLEAR_GRADIENTS,
    Remedy(
        "use-relu-with-he-initialisation",
        "Replace sigmoid and tanh in the hidden layers by ReLU or GELU, with weights initialised for it.",
        "activation = torch.nn.ReLU()  # not Sigmoid(), in the hidden layers\n"
        "for module in model.modules():\n"
        "    if isinstance(module, torch.nn.Linear):\n"
        "        torch.nn.init.kaiming_normal_(module.weight)",
        "Outputs are no longer bounded; where bounded values are needed, keep the last sigmoid.",
        when_not="The weights are pretrained: they expect the activation they had.",
    ),
    ADD_NORMALISATION_OR_SHORTCUTS,
    CLIP_GRADIENTS,
    Remedy(
        "tame-the-recurrence",
        "Start the recurrent weights orthogonal, so that repeated multiplication neither grows nor shrinks.",
        "layer = $layer\n"
        "for name, parameter in layer.named_parameters():\n"
        '    if "weight_hh" in name:\n'
        "        torch.nn.init.orthogonal_(parameter)",
        "None at the start; long sequences may still need a GRU or LSTM.",
        when_not="The model has no recurrent layer, or its weights are pretrained.",
    ),
    Remedy(
        "raise-the-clip-threshold",
        "Clip where gradients are unusual, not always: a threshold a little above their usual norm.",
        "norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)\n"
        "print(float(norm))  # the norm before clipping: take twice its median",
        "Steps become larger at once; have the learning rate ready to come down.",
        when_not="Gradients explode without the threshold: then their cause comes first.",
    ),
    Remedy(
        "unscale-before-clipping",
        "Take the loss scale off the gradients before they are clipped.",
        "scaler.scale(loss).backward()\n"
        "scaler.unscale_(optimizer)\n"
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        "scaler.step(optimizer)\n"
        "scaler.update()",
        "None.",
        when_not="There is no loss scaler.",
    ),
    USE_LARGER_BATCHES,
    Remedy(
        "balance-the-terms",
        "Bring the terms of the loss to the same order of size before they are added.",
        "terms = {'a': loss_a, 'b': loss_b}\n"
        "print({name: float(term) for name, term in terms.items()})\n"
        "loss = loss_a + (loss_a.detach() / loss_b.detach()) * loss_b",
        "The balance decides what the model becomes good at: choose it, do not only equalise it.",
        when_not="One term is small on purpose, as a regulariser is.",
    ),
    GUARD_AGAINST_SPIKES,
    Remedy(
        "free-the-padding-index",
        "Give padding an index of its own, or leave `padding_idx` out: its row is never trained.",
        "vocabulary = ['<pad>', *characters]  # index 0 stands for nothing else\n"
        "count = len(vocabulary)\n"
        "embedding = torch.nn.Embedding(count, width, padding_idx=0)",
        "All indices move by one: encode the data again, and old checkpoints do not fit.",
        when_not="The token really stands for nothing, and is left out of the loss, too.",
    ),
)

BY_CODE: dict[str, tuple[str, ...]] = {
    "GRD001": ("use-relu-with-he-initialisation", "add-normalisation-or-shortcuts", "initialise-for-the-activation"),
    "GRD002": ("initialise-for-the-activation", "tame-the-recurrence", "clip-gradients", "lower-the-learning-rate"),
    "GRD004": ("revive-the-units", "break-the-zero", "remove-the-mask", "free-the-padding-index"),
    "GRD005": ("lower-the-learning-rate", "usual-momentum", "shuffle-the-data"),
    "GRD006": ("guard-against-spikes", "inspect-the-batch", "warm-up"),
    "GRD007": ("clear-gradients",),
    "GRD008": ("use-larger-batches", "lower-the-learning-rate"),
    "GRD009": ("balance-the-terms", "use-larger-batches"),
    "GRD010": ("raise-the-clip-threshold", "unscale-before-clipping"),
}


def fitting(finding: Finding) -> tuple[str, ...] | None:
    every = BY_CODE[finding.code]
    shown = {evidence.quantity for evidence in finding.evidence}
    match finding.code:
        case "GRD002" if any("weight_hh" in layer for layer in finding.layers[:2]):
            return ("tame-the-recurrence", "clip-gradients", "lower-the-learning-rate")
        case "GRD002":
            return tuple(name for name in every if name != "tame-the-recurrence")
        case "GRD004" if not finding.severity.is_alarm:
            return ()
        case "GRD004" if "padding_inside" in shown:
            return ("free-the-padding-index",)
        case "GRD004" if "stepped_gradient_max_abs" in shown:  # the backward pass gave one
            return ("remove-the-mask",)
        case "GRD004" if "weight_norm" in shown:
            return ("break-the-zero",)
        case "GRD004" if "activation_zero_fraction" not in shown:
            return ("remove-the-mask", "break-the-zero", "revive-the-units")
        case "GRD010":
            return ("unscale-before-clipping",) if "loss_scale" in shown else ("raise-the-clip-threshold",)
        case _:
            return tuple(name for name in every if name != "free-the-padding-index")
