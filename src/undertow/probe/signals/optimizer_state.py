"""What an optimizer is set to and what it keeps, per parameter, right after it has stepped.

State is read from evenly spaced elements of each tensor, and on the CPU only: elsewhere it would have to wait.
"""

import math
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim.optimizer import Optimizer

from undertow.measure.kernels.tensors import array_of, is_freed
from undertow.probe.distributed.portions import local_of
from undertow.probe.tensor_list import sample
from undertow.schema.quantities import OPTIMIZER

_ELEMENTS = 1024  # read per tensor
_MOST_TO_COPY = 1 << 20  # elements of a tensor that lies in memory in another order than it is counted

LINE = {name: line for line, name in enumerate(OPTIMIZER.names)}

Floats = NDArray[np.float64]


def read_optimizer(optimizer: Optimizer, tensors: Sequence[torch.Tensor], rebuilt: bool) -> NDArray[np.float32]:
    """(quantities of the stream × tensors); NaN where there is nothing to read."""
    values = np.full((len(LINE), len(tensors)), np.nan, np.float32)
    place = {id(tensor): column for column, tensor in enumerate(tensors)}
    with torch.no_grad(), np.errstate(all="ignore"):
        for group in optimizer.param_groups:
            settings = _settings(group) | {"optimizer_rebuilt": float(rebuilt)}
            for tensor in group["params"]:
                column = place.get(id(tensor))
                if column is not None:
                    for name, value in (settings | _kept(optimizer, group, tensor)).items():
                        values[LINE[name], column] = value
    return values


def group_numbers(optimizer: Optimizer) -> dict[str, float]:
    """How its parameter groups are filled, and what rate and memory they were made with."""
    groups = optimizer.param_groups
    found = {
        "initial_lr": [_number(group.get("initial_lr")) for group in groups],
        "optimizer_eps": [_number(group.get("eps")) for group in groups if "betas" in group],
        "optimizer_memory_ratio": [_memory_ratio(group) for group in groups],
    }
    known = {name: [value for value in values if value is not None] for name, values in found.items()}
    empty = {"optimizer_empty_groups": float(sum(not group["params"] for group in groups))}
    uphill = {"optimizer_maximizes": 1.0} if any(group.get("maximize") for group in groups) else {}
    return empty | uphill | {name: max(values) for name, values in known.items() if values}


def _memory_ratio(group: Mapping[str, Any]) -> float | None:
    """How many times as long Adam's mean of the gradients remembers as their scale."""
    betas = group.get("betas")
    if "eps" not in group or not isinstance(betas, (tuple, list)) or len(betas) != 2:
        return None
    first, second = map(_number, betas)
    return (1.0 - second) / (1.0 - first) if first is not None and second is not None and first < 1 else None


def _settings(group: Mapping[str, Any]) -> dict[str, float]:
    betas = group.get("betas")
    momentum = betas[0] if isinstance(betas, (tuple, list)) and betas else group.get("momentum")
    found = {
        "optimizer_rate": _number(group.get("lr")),
        "optimizer_weight_decay": _number(group.get("weight_decay")),
        "optimizer_momentum": _number(momentum),
    }
    return {name: value for name, value in found.items() if value is not None}


def _number(value: Any) -> float | None:
    if isinstance(value, torch.Tensor):
        return float(value.item()) if value.device.type == "cpu" and value.numel() == 1 else None
    return float(value) if isinstance(value, (int, float)) else None


def _kept(optimizer: Optimizer, group: Mapping[str, Any], tensor: torch.Tensor) -> dict[str, float]:
    state: Mapping[str, Any] = optimizer.state.get(tensor, {})
    found: dict[str, float] = {}
    count = _number(state.get("step"))
    if count is not None:
        found["optimizer_step_count"] = count
    scaled = getattr(optimizer, "grad_scale", None) is not None
    gradient = _some(None if scaled else tensor.grad)
    spread = _second_moment(state, group, count)
    if spread is not None:
        spread = np.maximum(spread, 0.0)
        alive, eps = spread > 0, _number(group.get("eps"))
        if eps and alive.any():
            found["optimizer_eps_ratio"] = _median(np.sqrt(spread[alive])) / eps
        if gradient is not None and len(gradient) == len(spread) and alive.any():
            found["optimizer_gradient_rms"] = math.sqrt(float((gradient[alive] ** 2 / spread[alive]).mean()))
    momentum = _some(state.get("momentum_buffer", state.get("exp_avg")))
    if momentum is not None and gradient is not None and len(gradient) == len(momentum):
        lengths = math.sqrt(float(momentum @ momentum) * float(gradient @ gradient))
        if 0 < lengths < math.inf:
            sign = -1.0 if group.get("maximize") else 1.0
            found["optimizer_momentum_cosine"] = sign * float(momentum @ gradient) / lengths
    return found


def _second_moment(state: Mapping[str, Any], group: Mapping[str, Any], count: float | None) -> Floats | None:
    """What the optimizer divides by, squared and corrected for its start at zero."""
    adam = state.get("max_exp_avg_sq", state.get("exp_avg_sq"))
    if adam is None:
        return _some(state.get("square_avg", state.get("sum")))
    moment, betas = _some(adam), group.get("betas")
    if moment is None or count is None or not isinstance(betas, (tuple, list)) or len(betas) < 2:
        return None
    second = _number(betas[1])
    correction = 1.0 - second**count if second is not None and count > 0 else 0.0
    return moment / correction if correction > 0 else None


def _some(tensor: Any) -> Floats | None:
    """Evenly spaced elements, in the order in which they are counted; of the part that this process holds."""
    if type(tensor) is torch.Tensor:
        found = sample(tensor, torch.float32, _ELEMENTS)
        if found is not None:
            return np.frombuffer(found)
    tensor = local_of(tensor)
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return None
    is_scattered = not tensor.is_contiguous() and tensor.numel() > _MOST_TO_COPY
    if not tensor.numel() or is_freed(tensor) or tensor.is_complex() or is_scattered:
        return None
    flat, stride = tensor.detach().reshape(-1), max(1, tensor.numel() // _ELEMENTS)
    return array_of(flat[::stride].double())


def _median(values: Floats) -> float:
    middle = len(values) // 2
    ordered = np.partition(values, middle)
    return float(ordered[middle]) if len(values) % 2 else float(ordered[:middle].max() + ordered[middle]) / 2


class Holders:
    """Which optimizer objects have stepped a set of layers: a new one has forgotten what the old one kept."""

    def __init__(self) -> None:
        self._seen: dict[bytes, weakref.WeakSet[Optimizer]] = {}
        self._latest = b""
        self.begins_another = False  # with the step that was asked for last, another training began

    def is_rebuilt(self, optimizer: Optimizer, layers: NDArray[np.int32]) -> bool:
        """True when these layers were stepped before, and never by this object. To be asked once in every step.

        Two that live side by side and step in turn are new once each.
        """
        key = layers.tobytes()
        seen = self._seen.get(key)
        self.begins_another = seen is None and self._is_another(layers)
        self._latest = key
        if seen is None:
            self._seen[key] = weakref.WeakSet([optimizer])
            return False
        if optimizer in seen:
            return False
        seen.add(optimizer)
        return True

    def _is_another(self, layers: NDArray[np.int32]) -> bool:
        """All optimizers before are gone; some of what the latest one trained rests now, and new parameters are
        trained: as a classifier on what an autoencoder has learnt.
        """
        if not self._seen or any(len(objects) for objects in self._seen.values()):
            return False
        known = {layer for key in self._seen for layer in np.frombuffer(key, layers.dtype).tolist()}
        mine = set(layers.tolist())
        return bool(mine - known) and not mine.issuperset(np.frombuffer(self._latest, layers.dtype).tolist())
