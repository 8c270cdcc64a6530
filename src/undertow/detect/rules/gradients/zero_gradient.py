"""GRD004: a gradient is exactly zero."""

import math
from collections.abc import Sequence

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, LayerIndex, Shared, Stage
from undertow.detect.features.remedies import REVIVE_THE_UNITS
from undertow.detect.features.wording import count_of, known, name_layers
from undertow.detect.features.zero_gradients import ZeroGradients
from undertow.schema import Evidence, Finding, Remedy, Severity

_BREAK_THE_ZERO = Remedy(
    "break-the-zero",
    "Where two factors multiply (adapters, gates, tables), only one of them may start at zero: start this one at "
    "random.",
    "torch.nn.init.normal_($tensor, std=0.02)",
    "None: the product still starts at zero.",
    when_not="Only one factor is zero: its gradient is there from the second step on.",
)
_REMOVE_THE_MASK = Remedy(
    "remove-the-mask",
    "Look for a hook, mask or in-place multiplication that erases this gradient.",
    "for name, module in model.named_modules():\n"
    "    print(name, module._forward_hooks, module._backward_hooks)\n"
    "for name, parameter in model.named_parameters():\n"
    "    print(name, parameter._backward_hooks)",
    "None; it only looks.",
)


class ZeroGradient(Condition):
    """A gradient is there, and every element of it is exactly zero.

    What it sees: All elements of a layer's gradient are zero at ten measured steps in a row, while the loss is not zero
        and its module runs; after a steady flow at five, and at three when the gradient ends for all layers from the
        input up to some place; at four when the backward pass gave one that was zero at the optimizer's step. Listed
        first is where the flow stops: a module whose output is zero everywhere, else the last layer in execution order.
    Why it is bad: The layer does not learn. Typical causes: a ReLU that is never active, adapters with both factors
        zero, a mask or hook that erases the gradient, or half-precision gradients too small to be represented.
    When it is wrong: Branches initialised to zero (ReZero, the second LoRA factor) hold back the gradient at the first
        steps only. Steps in which the module did not run (an expert without tokens, an unused head) and steps with a
        loss of zero do not count.
    References: Lu et al., "Dying ReLU and Initialization: Theory and Numerical Examples", 2019 (arXiv 1903.06733).
        Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021 (arXiv 2106.09685).
    """

    code, variant, formerly = "GRD004", "zero-gradient", "zero"
    places = ("initialisation", "parameter")
    stage, is_exact = Stage.BLOCKED, True
    _gradients = Shared(ZeroGradients)
    meaning = "These layers do not learn"
    remedies = (REVIVE_THE_UNITS, _BREAK_THE_ZERO, _REMOVE_THE_MASK)

    def observe(self, view: FrameView) -> Judgement | None:
        if not self._gradients.is_informed:
            return None
        members = self._gradients.layers
        return self.hold(members, lambda: self._describe(view)) if members else self.end()

    def _describe(self, view: FrameView) -> Judgement:
        gradients, layout = self._gradients, view.layout
        ordered = layout.in_order(gradients.layers)
        first_step = int(gradients.streak.since[ordered].min())
        if gradients.erased[ordered].all():
            return self._describe_erased(view, ordered, first_step)
        origin, reason = self._origin(layout, ordered)
        layers = (*origin, *(i for i in ordered if i not in origin))
        evidence = [
            Evidence("gradient_zero_fraction", layout.path(i), 1.0, None,
                     f"every element was exactly zero at the last {int(gradients.streak.length[i])} measured steps")
            for i in layers[:3]
        ]  # fmt: skip
        evidence.extend(reason)
        norms = view.all_layers("weight_norm")
        empty = [i for i in layers if norms[i] == 0 and not layout.is_bias[i]]
        if empty:
            how = "the weight is zero, and so is what it is multiplied by: neither can move the other"
            evidence.insert(0, Evidence("weight_norm", layout.path(empty[0]), 0.0, None, how))
        loss = view.scalar("loss")
        if math.isfinite(loss):
            evidence.append(Evidence("loss", None, loss, None, "the loss is not zero, so there is something to learn"))
        scope = "" if gradients.is_flowing else " No layer of this optimizer has a gradient."
        summary = (
            f"The gradient of {count_of(len(layers), 'layer')} is exactly zero since step {first_step}: "
            f"{name_layers(layout, layers)}.{scope}"
        )
        confidence = 0.97 if gradients.is_flowing else 0.9
        return Judgement(Severity.SEVERE, layers, first_step, confidence, summary, tuple(evidence))

    def _describe_erased(self, view: FrameView, ordered: list[int], first_step: int) -> Judgement:
        layout, norms = view.layout, view.all_layers("gradient_norm")
        evidence = tuple(
            Evidence("stepped_gradient_max_abs", layout.path(i), 0.0, known(norms[i]),
                     "exactly zero when the optimizer stepped; the backward pass had given a gradient of this norm")
            for i in ordered[:3]
        )  # fmt: skip
        summary = (
            f"The gradient of {name_layers(layout, ordered)} is set to zero between the backward pass and the "
            f"optimizer's step, since step {first_step}: a mask, or a zero_grad in the wrong place?"
        )
        return Judgement(Severity.SEVERE, tuple(ordered), first_step, 0.97, summary, evidence)

    def _origin(self, layout: LayerIndex, zero: list[int]) -> tuple[list[int], list[Evidence]]:
        """The layers where the flow stops, and what shows it."""
        silent = layout.in_order(np.flatnonzero(self._gradients.silent))
        # A container is silent when its last child is: the child says more.
        paths = [layout.path(i) for i in silent]
        silent = [i for i in silent if not any(path.startswith(f"{layout.path(i)}.") for path in paths)]
        feeders = [i for i in zero if silent and layout.module_order[i] <= layout.order[silent[0]]]
        if feeders:
            group = layout.layers[feeders[-1]].group
            how = "the first module in execution order whose output is zero everywhere"
            shown = Evidence("activation_zero_fraction", layout.path(silent[0]), 1.0, None, how)
            return [i for i in feeders if layout.layers[i].group == group], [shown]
        # A weight with a zero gradient beside a bias with one that is not has an input of zeros: look before it.
        length = self._gradients.streak.length
        alive = {layer.group for layer in layout.layers.parameters if layer.trainable and length[layer.id] == 0}
        whole = [i for i in zero if layout.layers[i].group not in alive] or zero
        return layout.closest_to_the_loss(whole), []

    @classmethod
    def remedies_for(cls, finding: Finding) -> Sequence[Remedy]:
        shown = {evidence.quantity for evidence in finding.evidence}
        if "stepped_gradient_max_abs" in shown:  # the backward pass gave one
            return (_REMOVE_THE_MASK,)
        if "weight_norm" in shown:
            return (_BREAK_THE_ZERO,)
        return cls.remedies if "activation_zero_fraction" in shown else cls.remedies[::-1]
