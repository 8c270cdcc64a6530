"""Parameters that get a gradient although no watched model holds them: layers in a plain list, or another model."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Mapping

import torch
from torch import nn
from torch.optim.optimizer import Optimizer


class Strangers:
    """Remembers the parameters of modules that ran unknown, without keeping them alive."""

    def __init__(self) -> None:
        self._parameters: dict[int, weakref.ref[torch.Tensor]] = {}

    def note(self, ran: Mapping[int, nn.Module], known: Collection[int], roots: Iterable[nn.Module]) -> None:
        """`ran` and `known` by the id of a module; `roots` are those that the program itself called.

        A model that is called beside a watched one (a teacher, a network that judges pictures) may be left alone on
        purpose. A module that runs inside a watched model without being a part of it is there by mistake. So is one of
        the user's own making that has parameters and no layers: a loss with centres, weights or a temperature.
        """
        strange = {identity: module for identity, module in ran.items() if identity not in known}
        if not strange:
            return
        if len(strange) < len(ran):  # a watched model ran, too
            for root in roots:
                for part in root.modules():
                    if part is not root or not _is_criterion(root):
                        strange.pop(id(part), None)
        for module in strange.values():
            for parameter in module.parameters(recurse=False):
                if parameter.requires_grad:
                    self._parameters[id(parameter)] = weakref.ref(parameter)

    def untrained(self, optimizer: Optimizer, watched: Collection[int]) -> float:
        """How many have a gradient, are not held by the optimizer that has just stepped, and have stayed unknown."""
        found = [ref() for ref in self._parameters.values()]
        waiting = {id(tensor) for tensor in found if tensor is not None and tensor.grad is not None}
        waiting.difference_update(watched)
        if waiting:
            waiting -= {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
        return float(len(waiting))


def _is_criterion(module: nn.Module) -> bool:
    """Whether all its parameters are its own, and it is none of PyTorch's layers."""
    own, all_of_them = len(module._parameters), sum(1 for _ in module.parameters())
    return 0 < all_of_them <= own and not type(module).__module__.startswith("torch.")
