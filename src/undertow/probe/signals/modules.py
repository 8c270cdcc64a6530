"""What a module is set to, and whether its output still depends on the sample."""

import weakref
from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]
from torch.nn.parameter import is_lazy

from undertow.measure.kernels.tensors import array_of, is_freed

_functorch: Any = getattr(torch._C, "_functorch")  # noqa: B009
_CHANNELS_FIRST_3D = (nn.Conv1d, nn.BatchNorm1d, nn.ConvTranspose1d, nn.InstanceNorm1d)
_SPREAD_SAMPLES = 64
_SPREAD_ELEMENTS = 1 << 14
_MOST_WATCHED = 64
_MOST_MEANS = 1 << 13


def constants(module: nn.Module) -> dict[str, float]:
    """Settings of a normalisation or dropout, by quantity."""
    found: dict[str, float] = {}
    if "norm" in type(module).__name__.lower():
        eps = getattr(module, "eps", getattr(module, "variance_epsilon", None))
        if isinstance(eps, (int, float)):
            found["norm_eps"] = float(eps)
    if isinstance(module, _BatchNorm) and isinstance(module.momentum, (int, float)):
        found["norm_momentum"] = float(module.momentum)
    if isinstance(module, _DropoutNd):
        found["dropout_rate"] = float(module.p)
    return found


def unit_dimension(kind: type[nn.Module], dimensions: int) -> int:
    """Which dimension of the output of such a module holds the units: channels or features."""
    channels_first = dimensions >= 4 or (dimensions == 3 and issubclass(kind, _CHANNELS_FIRST_3D))
    return 1 if channels_first or dimensions == 2 else dimensions - 1


def norm_values(module: nn.Module, inputs: Any) -> int | None:
    """Of how many values a normalisation takes each mean; None when it takes none."""
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        return prod(module.normalized_shape)
    given = _first(inputs)
    if not isinstance(module, _BatchNorm) or not (module.training or module.running_mean is None):
        return None
    return None if given is None or given.dim() < 2 else given.numel() // max(1, given.shape[1])


def norm_samples(module: nn.Module, inputs: Any) -> int | None:
    """How many samples a batch normalisation is given: many values can come from the places of a single one."""
    given = _first(inputs)
    return given.shape[0] if isinstance(module, _BatchNorm) and given is not None else None


def _first(inputs: Any) -> torch.Tensor | None:
    return inputs[0] if isinstance(inputs, tuple) and inputs and isinstance(inputs[0], torch.Tensor) else None


def running_average(module: nn.Module) -> float | None:
    """The norm of the running means of a batch normalisation in training mode."""
    if not isinstance(module, _BatchNorm) or not module.training:
        return None
    means = module.running_mean
    if means is None or is_lazy(means) or means.device.type != "cpu":
        return None
    if means.numel() > _MOST_MEANS or not means.is_floating_point():
        return None
    if is_freed(means):
        return None
    return float(np.sqrt(np.square(array_of(means.double())).sum()))


def is_wrapped(tensor: torch.Tensor) -> bool:
    """Whether it stands for several at once, or for one on its way through a transform: it has no memory of its own."""
    return _functorch.is_functorch_wrapped_tensor(tensor) or _functorch.is_legacy_batchedtensor(tensor)


def raw_data(module: nn.Module, inputs: Any) -> torch.Tensor | None:
    """The data this module takes in, when it has parameters of its own and nothing before it had any."""
    given = _first(inputs)
    if type(given) is not torch.Tensor or not given.is_floating_point() or given.requires_grad or not given.numel():
        return None
    if given.layout is not torch.strided or given.device.type == "meta" or is_wrapped(given):
        return None
    return given if any(one is not None for one in module._parameters.values()) else None


def sample_spread(values: torch.Tensor) -> float | None:
    """The share of the variance that lies between samples (the first dimension), from the leading ones."""
    if values.dim() < 2 or values.shape[0] < 2 or values.device.type != "cpu":
        return None
    array: NDArray[np.float32] = array_of(values[:_SPREAD_SAMPLES].float())
    array = array.reshape(len(array), -1)
    if array.size > _SPREAD_ELEMENTS:
        array = array[:, :: -(-array.size // _SPREAD_ELEMENTS)]
    with np.errstate(all="ignore"):
        typical = np.add.reduce(array, axis=0) / len(array)  # the output of no sample in particular
        between = _squares((array - typical).ravel()) / array.size
        typical = typical - np.add.reduce(typical) / len(typical)
        total = between + _squares(typical) / len(typical)
    return between / total if 0 < total < np.inf else None


def _squares(values: NDArray[np.float32]) -> float:
    """Their sum, in one pass, and in this thread: a product of vectors might be shared among several."""
    return float(np.einsum("i,i->", values, values))


class ModeWatch:
    """Notices that normalisations or dropouts have gone into a mode not seen before, without any hook."""

    def __init__(self) -> None:
        self._modules: dict[int, weakref.ref[nn.Module]] = {}  # by id
        self._seen: dict[bytes, int] = {}  # how often, counted up to two

    def know(self, modules: Iterable[nn.Module]) -> None:
        for module in modules:
            if isinstance(module, (_BatchNorm, _DropoutNd)) and not self._knows(module):
                if len(self._modules) >= _MOST_WATCHED:
                    self._modules = {key: one for key, one in self._modules.items() if one() is not None}
                if len(self._modules) >= _MOST_WATCHED:
                    return
                self._modules[id(module)] = weakref.ref(module)
                self._seen = {}

    def _knows(self, module: nn.Module) -> bool:
        known = self._modules.get(id(module))
        return known is not None and known() is module

    def is_new(self) -> bool:
        """True when the modes at this backward pass differ from all earlier ones, and once more: twice is no chance."""
        modes = bytes(bool(module.training) for ref in self._modules.values() if (module := ref()) is not None)
        times = self._seen.get(modes, 0)
        if times == 2:
            return False
        self._seen[modes] = times + 1
        return next(iter(self._seen)) != modes
