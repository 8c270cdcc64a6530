"""Tensors that get a gradient although no watched model holds them as parameters: those of layers in a plain list or
of another model, and plain tensors that a module keeps as attributes."""

import weakref
from collections.abc import Collection, Iterable, Mapping

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from undertow.probe.unseen import modules_of, parameters_of

_FIRST = 64  # elements: an update by hand moves some of them

_State = tuple[int, torch.Tensor | None]  # version and first elements, of a tensor that can be read


class UnregisteredParameters:
    """Remembers the parameters of modules that ran unknown, and loose tensors, without keeping them alive."""

    def __init__(self) -> None:
        self._parameters: dict[int, weakref.ref[torch.Tensor]] = {}
        self._first: dict[int, _State] = {}  # when first seen

    def note(self, ran: Mapping[int, nn.Module], known: Collection[int], roots: Iterable[nn.Module]) -> None:
        """`ran` and `known` by the id of a module; `roots` are those that the program itself called.

        A model that is called beside a watched one (a teacher, a network that judges pictures) may be left alone on
        purpose. A module that runs inside a watched model without being a part of it is there by mistake. So is one of
        the user's own making that has parameters and no layers: a loss with centres, weights or a temperature.
        """
        for module in ran.values():
            for tensor in _loose_tensors(module):
                self._remember(tensor)
        strange = {identity: module for identity, module in ran.items() if identity not in known}
        if not strange:
            return
        if len(strange) < len(ran):  # a watched model ran, too
            for root in roots:
                for part in modules_of(root):
                    if part is not root or not _is_criterion(root):
                        strange.pop(id(part), None)
        for module in strange.values():
            for parameter in module._parameters.values():  # some modules warn when they are asked for `parameters()`
                if parameter is not None and parameter.requires_grad and parameter.is_leaf:
                    self._remember(parameter)

    def _remember(self, tensor: torch.Tensor) -> None:
        known = self._parameters.get(id(tensor))
        if known is None or known() is not tensor:
            self._parameters[id(tensor)] = weakref.ref(tensor)
            self._first[id(tensor)] = _state(tensor)

    def knows(self, identity: int) -> bool:
        known = self._parameters.get(identity)
        return known is not None and known() is not None

    def untrained(self, optimizer: Optimizer, watched: Collection[int]) -> float:
        """How many have a gradient, are not held by the optimizer that has just stepped, and have stayed unknown."""
        found = [tensor for ref in self._parameters.values() if (tensor := ref()) is None or not self._is_moved(tensor)]
        waiting = {id(tensor) for tensor in found if tensor is not None and tensor.grad is not None}
        waiting.difference_update(watched)
        if waiting:
            waiting -= {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
        return float(len(waiting))

    def _is_moved(self, tensor: torch.Tensor) -> bool:
        """Whether it is no longer what it was: the program updates it by itself, or copies into it what it trains
        elsewhere, as the weights of a model in half precision."""
        (version, before), (latest, now) = self._first[id(tensor)], _state(tensor)
        return version != latest or (before is not None and now is not None and not torch.equal(before, now))


def _loose_tensors(module: nn.Module) -> list[torch.Tensor]:
    """Attributes that are to be trained, by their flag, and that `parameters()` does not know."""
    tensors = [value for value in vars(module).values() if type(value) is torch.Tensor]
    return [tensor for tensor in tensors if tensor.requires_grad and tensor.is_leaf and _is_readable(tensor)]


def _is_readable(tensor: torch.Tensor) -> bool:
    """Of others the first elements cannot be had without waiting for a device, or without a copy of the whole."""
    return tensor.device.type == "cpu" and tensor.layout == torch.strided and tensor.is_contiguous()


def _state(tensor: torch.Tensor) -> _State:
    first = tensor.detach().flatten()[:_FIRST].clone() if _is_readable(tensor) else None
    return int(tensor._version), first


def _is_criterion(module: nn.Module) -> bool:
    """Whether all its parameters are its own, and it is none of PyTorch's layers."""
    own, all_of_them = len(module._parameters), sum(1 for _ in parameters_of(module))
    return 0 < all_of_them <= own and not type(module).__module__.startswith("torch.")
