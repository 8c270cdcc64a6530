"""What the user can change, by code: paste-able, with its risk, best first."""

from __future__ import annotations

import re
from dataclasses import replace

from undertow.schema.findings import Finding, Remedy

LOWER_RATE = "lower-the-learning-rate"

_CATALOGUE: tuple[Remedy, ...] = (
    Remedy(
        "guard-the-operation",
        "Keep the operation away from the point where its derivative is infinite.",
        "x.clamp_min(1e-6).sqrt()          # not x.sqrt()\n"
        "x.clamp_min(1e-6).log()           # not x.log()\n"
        "(x * x).sum(-1).add(1e-6).sqrt()  # not x.norm(dim=-1)",
        "An epsilon that is too large biases the result; 1e-6 is far below what training notices.",
    ),
    Remedy(
        "find-the-operation",
        "Let autograd name the line that produced the value: run a few steps with anomaly detection.",
        "with torch.autograd.detect_anomaly():\n    loss = compute_loss(batch)\n    loss.backward()",
        "Training is several times slower while it is on; switch it off afterwards.",
    ),
    Remedy(
        "skip-bad-steps",
        "Do not step on a gradient that is not finite, so that one bad batch cannot destroy the weights.",
        "norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        "if torch.isfinite(norm):\n    optimizer.step()\noptimizer.zero_grad()",
        "It hides the cause: if many steps are skipped, the operation still needs its guard.",
    ),
    Remedy(
        "loss-in-log-space",
        "Compute the loss from logits in one fused function instead of exp, log or softmax by hand.",
        "loss = torch.nn.functional.cross_entropy(logits, target)\n"
        "log_probability = torch.log_softmax(logits, dim=-1)  # not log(softmax)",
        "None; the values are the same where both are finite.",
    ),
    Remedy(
        LOWER_RATE,
        "Restart from the last good checkpoint with a learning rate ten times smaller, or with a warm-up.",
        'for group in optimizer.param_groups:\n    group["lr"] *= 0.1',
        "Slower progress if the learning rate was not the cause.",
    ),
    Remedy(
        "restore-finite-weights",
        "Go back to a checkpoint whose weights are finite, and check it before training goes on.",
        'state = torch.load("checkpoint.pt", weights_only=True)\n'
        "assert all(torch.isfinite(value).all() for value in state.values())\n"
        "model.load_state_dict(state)",
        "Steps since that checkpoint are lost; they were lost already.",
    ),
    Remedy(
        "smaller-loss-scale",
        "Let the scaler start lower, or train in bfloat16, which needs no loss scale.",
        'scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)\n'
        "# or, without any scaler:\n"
        'with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = compute_loss(batch)',
        "A scale that is too low lets small gradients round to zero in float16; bfloat16 does not have that problem.",
    ),
    Remedy(
        "remove-the-cut",
        "Remove what cuts the graph before the first layer that has a gradient: detach(), .data, torch.no_grad(), "
        ".item(), or a trip through numpy.",
        "hidden = encoder(x)  # not encoder(x).detach(), not under no_grad()\nout = head(hidden)",
        "Memory and time for the backward pass of the layers that were cut off.",
    ),
    Remedy(
        "freeze-openly",
        "If these layers are meant to stay as they are, say so.",
        "for parameter in module.parameters():\n    parameter.requires_grad_(False)",
        "They will not learn; that is the point.",
    ),
    Remedy(
        "drop-unused-parameters",
        "Leave modules that never run out of the optimizer, or call them in forward().",
        "used = [p for n, p in model.named_parameters() if 'unused' not in n]\noptimizer = torch.optim.AdamW(used)",
        "None, if they are really unused.",
    ),
    Remedy(
        "revive-the-units",
        "Give the units a way back: a leaky activation, and biases that start at zero.",
        "torch.nn.LeakyReLU(0.01)  # not torch.nn.ReLU()\ntorch.nn.init.zeros_(layer.bias)",
        "A leaky activation changes the function a little; pretrained weights expect the one they had.",
    ),
    Remedy(
        "break-the-zero",
        "Where two factors multiply (adapters, gates), only one of them may start at zero.",
        "torch.nn.init.kaiming_uniform_(adapter.A, a=5**0.5)\ntorch.nn.init.zeros_(adapter.B)",
        "None: the product still starts at zero.",
    ),
    Remedy(
        "remove-the-mask",
        "Look for a hook, mask or in-place multiplication that erases this gradient.",
        "for name, parameter in model.named_parameters():\n    print(name, parameter._backward_hooks)",
        "None; it only looks.",
    ),
    Remedy(
        "clear-gradients",
        "Clear the gradients once per optimizer step.",
        "optimizer.zero_grad()\nloss.backward()\noptimizer.step()",
        "The learning rate that worked with growing gradients may now be too small.",
    ),
    Remedy(
        "give-it-to-the-optimizer",
        "Build the optimizer after the model is complete, or add the missing parameters to it.",
        "groups = optimizer.param_groups\n"
        "held = {id(p) for group in groups for p in group['params']}\n"
        "missing = [p for p in model.parameters() if id(p) not in held]\n"
        "optimizer.add_param_group({'params': missing})",
        "The layers begin to move: a schedule tuned without them may need a new look.",
    ),
    Remedy(
        "keep-a-float32-master-copy",
        "Keep the weights in float32 and compute in low precision.",
        "model = model.float()\n"
        "with torch.autocast(device_type, dtype=torch.bfloat16):\n    loss = compute_loss(batch)",
        "Twice the memory for the weights.",
    ),
    Remedy(
        "raise-the-group-rate",
        "Give the parameter group a learning rate above zero, or freeze it openly.",
        'for group in optimizer.param_groups:\n    print(len(group["params"]), group["lr"])',
        "None; it only looks. A layer that starts to move changes the training.",
    ),
    Remedy(
        "unfreeze",
        "If a layer of the list was frozen by mistake, release it and give it to the optimizer.",
        "layer.requires_grad_(True)\noptimizer.add_param_group({'params': layer.parameters()})",
        "More memory and time per step, and layers that were fixed begin to change.",
    ),
)

REMEDIES: dict[str, Remedy] = {remedy.id: remedy for remedy in _CATALOGUE}

# Every remedy that can help with a code, for its page.
BY_CODE: dict[str, tuple[str, ...]] = {
    "NUM001": (
        "guard-the-operation",
        "find-the-operation",
        "skip-bad-steps",
        "smaller-loss-scale",
        LOWER_RATE,
    ),
    "NUM002": ("loss-in-log-space", LOWER_RATE, "guard-the-operation", "find-the-operation"),
    "NUM003": ("restore-finite-weights", LOWER_RATE, "skip-bad-steps"),
    "GRD003": ("remove-the-cut", "freeze-openly", "drop-unused-parameters"),
    "GRD004": ("revive-the-units", "break-the-zero", "remove-the-mask"),
    "GRD007": ("clear-gradients",),
    "UPD003": ("give-it-to-the-optimizer", "freeze-openly", "keep-a-float32-master-copy", "raise-the-group-rate"),
    "UPD004": ("unfreeze",),
}


# Operations that make a non-finite value of a finite one.
_RISKY = re.compile(r"operation (Div|Sqrt|Rsqrt|Log|Log2|Log10|Log1P|Reciprocal|Pow|Acos|Asin|Atanh)\b")


def with_remedies(finding: Finding, *, diverged: bool = False) -> Finding:
    """The finding with the remedies that fit this very case of it.

    `diverged`: the values had grown by orders of magnitude before, so no operation is to blame.
    """
    names = _fitting(finding)
    if diverged:
        names = (LOWER_RATE, *(name for name in names if name != LOWER_RATE))
    return replace(finding, remedies=tuple(REMEDIES[name] for name in names))


def _fitting(finding: Finding) -> tuple[str, ...]:
    every = BY_CODE.get(finding.code, ())
    shown = {evidence.quantity for evidence in finding.evidence}
    match finding.code:
        case "NUM001" if "step_skipped" in shown:
            # A scaler that works needs nothing; one that is stuck needs a lower scale first.
            return (
                ("smaller-loss-scale", "guard-the-operation", "find-the-operation") if finding.severity.is_alarm else ()
            )
        case "NUM001":
            return every[:3]
        case "NUM002" if not finding.severity.is_alarm:
            return ()
        case "NUM002" if any(_RISKY.search(evidence.how) for evidence in finding.evidence):
            return ("guard-the-operation", *(name for name in every if name != "guard-the-operation"))
        case "NUM003" if not finding.severity.is_alarm:
            return ()
        case "GRD003" if finding.severity.is_alarm:
            return ("remove-the-cut", "freeze-openly")
        case "GRD003":
            return ("drop-unused-parameters",)
        case "GRD004" if not finding.severity.is_alarm:
            return ()
        case "GRD004" if "activation_zero_fraction" not in shown:
            return ("remove-the-mask", "break-the-zero", "revive-the-units")
        case "UPD003" if "update_norm" in shown:
            if "weight_max_abs" in shown:
                return ("keep-a-float32-master-copy",)
            if "lr" in shown:
                return ("raise-the-group-rate", "freeze-openly")
            return ("raise-the-group-rate", "give-it-to-the-optimizer")
        case "UPD003":
            return ("give-it-to-the-optimizer", "freeze-openly") if finding.severity.is_alarm else ("freeze-openly",)
        case _:
            return every
