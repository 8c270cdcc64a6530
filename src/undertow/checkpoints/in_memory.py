"""Weights that are in memory already: a torch module, or a mapping from names to arrays."""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from undertow.checkpoints.checkpoint import Checkpoint, Entry, UnreadableCheckpointError, no_plain_floats
from undertow.checkpoints.elements import STORED, Elements
from undertow.checkpoints.naming import BUFFER, kind_of
from undertow.schema import LayerKind
from undertow.schema.checkpoints import Skipped

_DTYPES = {stored: name for name, stored in STORED.items() if stored.kind == "f"}


def is_module(source: object) -> bool:
    return hasattr(source, "named_parameters") and hasattr(source, "named_buffers") and hasattr(source, "named_modules")


def read_module(module: Any) -> Checkpoint:
    """All parameters and buffers, with kinds from the types of the modules that own them."""
    from undertow.checkpoints.torch_tensors import entry_of

    owners = {path: type(owner).__name__ for path, owner in module.named_modules(remove_duplicate=False)}
    tensors = [(path, one, False) for path, one in module.named_parameters(remove_duplicate=False)]
    tensors += [(path, one, True) for path, one in module.named_buffers(remove_duplicate=False)]
    found: list[Entry | Skipped] = []
    for path, tensor, is_buffer in tensors:
        owner = owners.get(path.rpartition(".")[0], "")
        found.append(entry_of(path, tensor, BUFFER if is_buffer else _kind(owner, path, tuple(tensor.shape))))
    return Checkpoint.of(type(module).__name__, "module", found)


def _kind(owner: str, path: str, shape: tuple[int, ...]) -> str:
    name = path.rpartition(".")[2]
    if "Norm" in owner:
        return LayerKind.NORM_SHIFT if name == "bias" else LayerKind.NORM_SCALE
    if "Embedding" in owner:
        return LayerKind.EMBEDDING
    if "Linear" in owner or "Conv" in owner:
        return LayerKind.BIAS if name == "bias" else LayerKind.WEIGHT
    return kind_of(path, shape)


def read_mapping(source: Mapping[Any, Any]) -> Checkpoint:
    """Values may be numpy arrays, nested lists of numbers, or torch tensors."""
    return Checkpoint.of("a mapping", "mapping", [_entry(name, value) for name, value in source.items()])


def _entry(name: Any, value: Any) -> Entry | Skipped:
    if not isinstance(name, str):
        raise UnreadableCheckpointError(
            f"a name among the weights is a {type(name).__name__}: {name!r}", way_out="Names must be text"
        )
    if hasattr(value, "untyped_storage"):
        from undertow.checkpoints.torch_tensors import entry_of

        return entry_of(name, value)
    if isinstance(value, np.ma.MaskedArray):
        raise _no_array(name, value, "some of its elements are masked")
    try:
        array: NDArray[Any] = np.asarray(value)
    except (ValueError, TypeError) as problem:
        raise _no_array(name, value, str(problem)) from problem
    if array.dtype.kind == "O" or array.dtype.kind in "SUV":
        raise _no_array(name, value, f"its elements are {array.dtype}")
    if isinstance(value, (list, tuple)) and array.dtype.kind in "iu":
        array = array.astype(np.float64)  # numbers written without a point
    if array.dtype.newbyteorder("<") not in _DTYPES:
        return no_plain_floats(name, array.dtype)
    dtype = _DTYPES[array.dtype.newbyteorder("<")]

    def load() -> Elements:
        return Elements(np.ascontiguousarray(array, STORED[dtype]).reshape(array.shape), dtype)

    where = (array.__array_interface__["data"][0], array.shape, array.strides) if array.size else None
    return Entry(name, kind_of(name, array.shape), array.shape, dtype, load, storage=where)


def _no_array(name: str, value: object, why: str) -> UnreadableCheckpointError:
    return UnreadableCheckpointError(
        f"the weights called {name!r} are no array of numbers ({type(value).__name__}): {why}",
        way_out="Give a numpy array, a torch tensor, or nested lists of equal length",
    )


def as_mapping(source: object) -> Mapping[Any, Any] | None:
    return cast(Mapping[Any, Any], source) if isinstance(source, Mapping) else None
