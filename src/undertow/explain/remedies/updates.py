"""UPD: what to change about updates."""

from __future__ import annotations

from undertow.detect.features.remedies import (
    KEEP_A_FLOAT32_MASTER_COPY,
    LET_ONLY_THE_OPTIMIZER_WRITE,
    RAISE_THE_GROUP_RATE,
    UNFREEZE,
)
from undertow.schema.findings import Finding, Remedy

REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        "give-it-to-the-optimizer",
        "Build the optimizer after the model is complete, or add the missing parameters to it.",
        "groups = optimizer.param_groups\n"
        "held = {id(p) for group in groups for p in group['params']}\n"
        "missing = [p for p in model.parameters() if id(p) not in held]\n"
        "optimizer.add_param_group({'params': missing})",
        "The layers begin to move: a schedule tuned without them may need a new look.",
        when_not="They are meant to stay as they are: then freeze them openly.",
    ),
    Remedy(
        "register-the-layers",
        "Keep layers in a torch.nn.ModuleList or ModuleDict instead of a list or dict, and make the optimizer from the "
        "model that runs.",
        "self.layers = torch.nn.ModuleList(self.layers)  # in __init__\n"
        "held = {id(p) for p in model.parameters()}  # of the model that runs",
        "The layers begin to move, and are saved: old checkpoints do not hold them.",
        when_not="They are a fixed part that was hidden on purpose: then freeze them.",
    ),
    Remedy(
        "keep-parameters-in-a-list",
        "Make a list of the parameters before you count or print them: parameters() can be read only once.",
        "parameters = list(model.parameters())  # or those of a part\n"
        "print(sum(p.numel() for p in parameters))\n"
        "optimizer = $optimizer(parameters, lr=$rate)",
        "The layers begin to move: a schedule tuned without them may need a new look.",
        when_not="The group is filled later, by add_param_group or by hand.",
    ),
    KEEP_A_FLOAT32_MASTER_COPY,
    RAISE_THE_GROUP_RATE,
    Remedy(
        "lower-the-group-rate",
        "Give this parameter group a learning rate like that of the others.",
        "layer = $layer\n"
        "mine = {id(p) for p in layer.parameters()}\n"
        "for group in optimizer.param_groups:\n"
        "    if any(id(p) in mine for p in group['params']):\n"
        "        group['lr'] /= 10",
        "The layer learns more slowly.",
        when_not="It is new among pretrained layers and meant to move faster.",
    ),
    LET_ONLY_THE_OPTIMIZER_WRITE,
    UNFREEZE,
)

BY_CODE: dict[str, tuple[str, ...]] = {
    "UPD001": (
        "lower-the-learning-rate",
        "warm-up",
        "average-the-micro-batches",
        "clip-gradients",
        "lower-the-group-rate",
    ),
    "UPD002": ("raise-the-learning-rate", "raise-the-group-rate", "small-eps", "let-only-the-optimizer-write"),
    "UPD003": (
        "give-it-to-the-optimizer",
        "keep-parameters-in-a-list",
        "register-the-layers",
        "freeze-openly",
        "keep-a-float32-master-copy",
        "raise-the-group-rate",
        "unfreeze",
        "clear-gradients",
    ),
    "UPD004": ("unfreeze",),
}


def fitting(finding: Finding) -> tuple[str, ...] | None:
    shown = {evidence.quantity for evidence in finding.evidence}
    match finding.code:
        case "UPD001" if finding.layers:  # some layers, beside others that move less
            return ("lower-the-group-rate",)
        case "UPD001" if "backward_count" in shown:
            return ("average-the-micro-batches", "lower-the-learning-rate")
        case "UPD001":
            return ("lower-the-learning-rate", "warm-up", "clip-gradients")
        case "UPD002" if finding.layers:  # some layers, beside others that move
            return ("raise-the-group-rate", "raise-the-learning-rate")
        case "UPD002" if "weight_drift" in shown:  # taken back
            return ("let-only-the-optimizer-write",)
        case "UPD002" if "optimizer_eps_ratio" not in shown:
            return ("raise-the-learning-rate",)
        case "UPD003" if "gradient_state" in shown and not finding.layers:  # the gradients go to other tensors
            return ("give-it-to-the-optimizer",)
        case "UPD003" if "gradient_state" in shown:  # frozen, and never trained
            return ("unfreeze",)
        case "UPD003" if "unregistered_parameters" in shown:
            return ("register-the-layers", "give-it-to-the-optimizer")
        case "UPD003" if "optimizer_empty_groups" in shown:
            return ("keep-parameters-in-a-list", "give-it-to-the-optimizer")
        case "UPD003" if "gradient_max_abs" in shown:  # nothing moves: the gradients are gone when the optimizer steps
            return ("clear-gradients",)
        case "UPD003" if "update_norm" in shown:
            if "weight_max_abs" in shown:
                return ("keep-a-float32-master-copy",)
            if "lr" in shown:
                return ("raise-the-group-rate", "freeze-openly")
            return ("raise-the-group-rate", "give-it-to-the-optimizer")
        case "UPD003":
            return ("give-it-to-the-optimizer", "freeze-openly") if finding.severity.is_alarm else ("freeze-openly",)
        case _:
            return None
