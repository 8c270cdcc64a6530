"""UPD: what to change about updates."""

from __future__ import annotations

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
    Remedy(
        "keep-a-float32-master-copy",
        "Keep the weights in float32 and compute in low precision.",
        "model = model.float()\n"
        "with torch.autocast(device_type, dtype=torch.bfloat16):\n    loss = compute_loss(batch)",
        "Twice the memory for the weights.",
        when_not="The weights are in float32 already.",
    ),
    Remedy(
        "raise-the-group-rate",
        "Give the parameter group a learning rate that fits the others, or freeze it openly.",
        'for group in optimizer.param_groups:\n    print(len(group["params"]), group["lr"])',
        "None; it only looks. A layer that starts to move changes the training.",
        when_not="A schedule raises it later on purpose.",
    ),
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
    Remedy(
        "let-only-the-optimizer-write",
        "Find the line that writes to the weights between steps (copy_, clamp_, reset_parameters, load_state_dict, "
        ".data) and take it out.",
        "weight = $tensor\n"
        "kept = weight.detach().clone()  # right after optimizer.step()\n"
        "assert torch.equal(weight, kept)  # further down, until it fails",
        "None; it only looks. What the line was for must then be done elsewhere, as an average in a model of its own.",
        when_not="The weights are projected on purpose, and the bound is right.",
    ),
    Remedy(
        "unfreeze",
        "If a layer was frozen by mistake, release it before the optimizer is built, or give it to the optimizer then.",
        "layer = $layer\n"
        "layer.requires_grad_(True)\n"
        "groups = optimizer.param_groups\n"
        "held = {id(p) for group in groups for p in group['params']}\n"
        "missing = [p for p in layer.parameters() if id(p) not in held]\n"
        "if missing:\n"
        "    optimizer.add_param_group({'params': missing})",
        "More memory and time per step, and layers that were fixed begin to change.",
        when_not="It is frozen on purpose.",
    ),
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
