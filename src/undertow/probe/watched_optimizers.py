"""The optimizers that step watched tensors: what they hold, and what they are set to."""

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim import Optimizer

from undertow.probe.discovery import optimizer_tensors
from undertow.probe.manual_optimizer import ManualOptimizer
from undertow.probe.readings import Number


class WatchedOptimizers:
    def __init__(self) -> None:
        self._references: list[weakref.ref[Optimizer]] = []

    def __iter__(self) -> Iterator[Optimizer]:
        """Those that are still there."""
        return (optimizer for one in self._references if (optimizer := one()) is not None)

    def begin(self, optimizers: Iterable[Optimizer]) -> None:
        self._references = [weakref.ref(optimizer) for optimizer in optimizers]

    def adopt(self, optimizer: Optimizer) -> None:
        """An optimizer made anew every step takes the place of the one that is gone."""
        if any(one is optimizer for one in self):
            return
        for index, reference in enumerate(self._references):
            if reference() is None:
                self._references[index] = weakref.ref(optimizer)
                return
        self._references.append(weakref.ref(optimizer))

    @property
    def are_one(self) -> bool:
        return len(self._references) == 1

    def of_slots(self, slot_of: dict[int, int]) -> NDArray[np.int64]:
        """The index of the one that holds each tensor, given the slots of those by id; -1 for none."""
        owner = np.full(len(slot_of), -1, np.int64)
        for index, reference in enumerate(self._references):
            optimizer = reference()
            for tensor in optimizer_tensors([optimizer]) if optimizer is not None else ():
                slot = slot_of.get(id(tensor))
                if slot is not None:
                    owner[slot] = index
        return owner

    @property
    def real(self) -> list[Optimizer]:
        """Without stand-ins."""
        return [one for one in self if not isinstance(one, ManualOptimizer)]

    def at(self, index: int) -> Optimizer | None:
        return self._references[index]()

    def learning_rates(self, optimizer: Optimizer) -> dict[str, Number]:
        groups = optimizer.param_groups
        if len(groups) == len(self._references) == 1 and type(rate := groups[0].get("lr")) is float:
            return {"lr": rate}
        rates: dict[str, Number] = {}
        number = 0
        for known in self:
            for group in known.param_groups:
                rate = group.get("lr")
                if known is optimizer and isinstance(rate, (int, float, torch.Tensor)):
                    rates[f"lr_{number}"] = rate.detach().clone() if isinstance(rate, torch.Tensor) else float(rate)
                number += 1
        if not rates:
            return {}
        values = list(rates.values())
        if all(isinstance(value, float) for value in values):
            largest: Number = max(values)  # pyright: ignore[reportArgumentType]
        else:
            largest = torch.stack([torch.as_tensor(value) for value in values]).max()
        return {"lr": largest, **(rates if number > 1 else {})}

    def facts(self) -> list[dict[str, Any]]:
        return [{"type": type(one).__name__, "groups": [*map(_facts_of_group, one.param_groups)]} for one in self.real]


def _facts_of_group(group: dict[str, Any]) -> dict[str, Any]:
    settings = {key: _plain(value) for key, value in group.items() if key not in ("params", "param_names")}
    return settings | {"parameters": len(group["params"])}


def _plain(value: Any) -> Any:
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return str(value) if not isinstance(value, torch.Tensor) else "tensor"
