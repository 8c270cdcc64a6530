"""GRD: what to change about gradients."""

from __future__ import annotations

from undertow.schema.findings import Finding, Remedy

REMEDIES: tuple[Remedy, ...] = (
    Remedy(
        "remove-the-cut",
        "Remove what cuts the graph before the first layer that has a gradient: detach(), .data, torch.no_grad(), "
        ".item(), or a trip through numpy.",
        "hidden = encoder(x)  # not encoder(x).detach(), not under no_grad()\nout = head(hidden)",
        "Memory and time for the backward pass of the layers that were cut off.",
        when_not="The layers before the cut are meant to stay as they are: then freeze them openly.",
    ),
    Remedy(
        "freeze-openly",
        "If these layers are meant to stay as they are, say so.",
        "layer = $layer\nlayer.requires_grad_(False)",
        "They will not learn; that is the point.",
        when_not="They are meant to learn.",
    ),
    Remedy(
        "drop-unused-parameters",
        "Leave modules that never run out of the optimizer, or call them in forward().",
        "layer = $layer\n"
        "unused = set(layer.parameters())\n"
        "used = [p for p in model.parameters() if p not in unused]\n"
        "optimizer = $optimizer(used)",
        "None, if they are really unused.",
        when_not="They run in some steps only, as experts and early exits do.",
    ),
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
    Remedy(
        "clear-gradients",
        "Clear the gradients once per optimizer step.",
        "optimizer.zero_grad()\nloss.backward()\noptimizer.step()",
        "The learning rate that worked with growing gradients may now be too small.",
        when_not="Between the micro-batches of one step: there they are meant to add up.",
    ),
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
    Remedy(
        "add-normalisation-or-shortcuts",
        "Give the gradient a short way back: a residual connection around each block, or a LayerNorm before it.",
        "def forward(self, x):\n    return x + self.block(self.norm(x))  # a LayerNorm",
        "It is another architecture: old checkpoints do not fit.",
        when_not="The model is only a few layers deep.",
    ),
    Remedy(
        "clip-gradients",
        "Clip the norm of the gradient between backward() and step().",
        "loss.backward()\ntorch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)\noptimizer.step()",
        "It treats the symptom: if most steps are clipped, look for what makes the gradients large.",
        when_not="Gradients are too small, or the learning rate is far too high: clipping only hides that.",
    ),
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
    Remedy(
        "use-larger-batches",
        "Average over more samples per step: a larger batch, or more micro-batches per step.",
        "accumulate = 4\n"
        "for index, batch in enumerate(loader):\n"
        "    (compute_loss(batch) / accumulate).backward()\n"
        "    if (index + 1) % accumulate == 0:\n"
        "        optimizer.step()\n"
        "        optimizer.zero_grad()",
        "Fewer steps per epoch; more memory when the batch itself grows.",
        when_not="The loss still falls well: noise is then no obstacle.",
    ),
    Remedy(
        "balance-the-terms",
        "Bring the terms of the loss to the same order of size before they are added.",
        "terms = {'a': loss_a, 'b': loss_b}\n"
        "print({name: float(term) for name, term in terms.items()})\n"
        "loss = loss_a + (loss_a.detach() / loss_b.detach()) * loss_b",
        "The balance decides what the model becomes good at: choose it, do not only equalise it.",
        when_not="One term is small on purpose, as a regulariser is.",
    ),
    Remedy(
        "guard-against-spikes",
        "Clip to a little above the usual norm, and look at the batch of the step at which it jumped.",
        "norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)\n"
        "if norm > 10:\n"
        "    print('unusual batch', index, float(norm))",
        "A threshold that is too low clips every step.",
        when_not="The jump comes from a change of the schedule or of the data that you made.",
    ),
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
    "GRD003": ("remove-the-cut", "freeze-openly", "drop-unused-parameters"),
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
        case "GRD003" if finding.severity.is_alarm:
            return ("remove-the-cut", "freeze-openly")
        case "GRD003":
            return ("drop-unused-parameters",)
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
