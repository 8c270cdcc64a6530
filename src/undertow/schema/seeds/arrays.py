"""Numbers as users hold them (numpy arrays, lists, torch tensors) become float64 arrays, or a clear error."""

from enum import StrEnum
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from undertow.errors import SettingError

Floats = NDArray[np.float64]
Choice = TypeVar("Choice", bound=StrEnum)


class InputError(SettingError, ValueError):
    """Numbers that cannot be analysed; the message names the layer."""


def legal(kind: type[Choice], value: Any, name: str) -> Choice:
    """The enum's value, or an error that names all of them."""
    try:
        return kind(value)
    except ValueError:
        raise InputError(f"{name} is {value!r}", way_out=f"Legal values: {', '.join(kind)}") from None


def as_array(values: Any, layer: str) -> Floats:
    """A float64 array of the same shape. Tensors are told by their `detach`, so torch is never imported."""
    if isinstance(values, np.ma.MaskedArray):
        raise InputError(f"layer {layer!r}: the array is masked", way_out="Give values.filled(numpy.nan)")
    try:
        plain = _without_tensors(values)
    except (TypeError, ValueError) as problem:
        raise InputError(f"layer {layer!r}: {problem}", way_out=_WAY_OUT) from None
    try:
        array = np.asarray(plain)
    except ValueError:  # rows of different lengths
        raise InputError(f"layer {layer!r}: the rows have different lengths", way_out=_WAY_OUT) from None
    if array.dtype == object and array.size and all(isinstance(item, int | float | None) for item in array.flat):
        array = np.array([np.nan if item is None else float(item) for item in array.flat]).reshape(array.shape)
    if array.dtype.kind not in "fiub":
        raise InputError(f"layer {layer!r}: values of type {array.dtype} are not real numbers", way_out=_WAY_OUT)
    return array.astype(np.float64, copy=False)


def as_series(values: Any, layer: str) -> Floats:
    """A float64 array with one axis: one number per step."""
    array = as_array(values, layer)
    if array.ndim != 1:
        raise InputError(f"layer {layer!r}: expected one number per step, got an array of shape {array.shape}")
    return array


def as_steps(steps: Any, layer: str, length: int) -> NDArray[np.int64]:
    """Whole, distinct step numbers, as many as there are samples; 0, 1, 2 … when none are given."""
    if steps is None:
        return np.arange(length, dtype=np.int64)
    numbers = as_series(steps, layer)
    if len(numbers) != length:
        raise InputError(f"layer {layer!r}: {length} values but {len(numbers)} steps")
    if not np.isfinite(numbers).all() or (numbers != np.floor(numbers)).any() or (numbers < 0).any():
        raise InputError(f"layer {layer!r}: steps must be whole numbers from 0 on")
    if (numbers > _LAST_STEP).any():
        raise InputError(f"layer {layer!r}: step {numbers.max():.17g} is too large; the last one possible is 2^53")
    whole = numbers.astype(np.int64)
    unique, times = np.unique(whole, return_counts=True)
    if len(unique) != length:
        raise InputError(
            f"layer {layer!r}: step {int(unique[times > 1][0])} appears more than once",
            way_out="Give one value per step",
        )
    return whole


def _without_tensors(values: Any) -> Any:
    if hasattr(values, "detach"):
        tensor = _own_part(values.detach())
        if getattr(tensor, "is_sparse", False):
            tensor = tensor.to_dense()
        tensor = tensor.cpu()
        if getattr(tensor, "is_complex", bool)():
            raise TypeError("complex values are not real numbers")
        return tensor.double().numpy()  # numpy has no bfloat16
    if isinstance(values, list | tuple):
        items = cast("list[Any]", list(values))  # pyright: ignore[reportUnknownArgumentType]
        if any(hasattr(item, "detach") or isinstance(item, list | tuple) for item in items):
            return [_without_tensors(item) for item in items]
        return items
    return values


def _own_part(tensor: Any) -> Any:
    """A tensor that is spread over devices, if this process holds all of it. Gathering it would take every rank."""
    if not hasattr(tensor, "full_tensor"):
        return tensor
    if tensor.device_mesh.size() > 1 and not all(placement.is_replicate() for placement in tensor.placements):
        raise TypeError(
            "it is one rank's part of a tensor spread over devices: give tensor.full_tensor(), on all ranks"
        )
    return tensor.to_local()


_LAST_STEP = 2**53  # beyond it float64 skips whole numbers
_WAY_OUT = "Give a numpy array, a list of numbers or a torch tensor"
