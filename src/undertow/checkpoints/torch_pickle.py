"""What a file of `torch.save` says of its tensors, without torch and without running anything it says.

The names that torch writes into such files stand for inert records here. A tensor becomes its description: which
storage of the file, and where in it.
"""

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from undertow.checkpoints.records import Record

# Bytes of an element; others have one.
_SIZES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "qint32": 4}
_SIZES |= {"complex64": 8, "complex128": 16}


@dataclass(frozen=True, slots=True)
class Storage:
    key: str
    dtype: str
    count: int  # elements
    first: int = 0  # element of the stored bytes with which it begins

    @property
    def bytes(self) -> int:
        return self.count * _SIZES.get(self.dtype, 1)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    storage: Storage
    dtype: str
    offset: int  # elements
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OddTensor:
    """One that is not stored as plain numbers."""

    reason: str


class ForeignObjectError(pickle.UnpicklingError):
    """An object that is neither a tensor nor a plain container."""


class _Table(dict[Any, Any]):
    """Takes the state that `state_dict()` and others attach to theirs, and forgets it."""

    def __setstate__(self, state: object) -> None:
        pass


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any, dtype: str = "") -> StoredTensor | OddTensor:
    shape, steps = tuple(size), tuple(stride)
    if not isinstance(storage, Storage) or len(shape) != len(steps):
        raise pickle.UnpicklingError("it describes a tensor without numbers")
    if any(type(one) is not int or not 0 <= one < 1 << 62 for one in (offset, *shape, *steps)):
        raise pickle.UnpicklingError("it describes a tensor whose sizes are none")
    return StoredTensor(storage, dtype or storage.dtype, offset, shape, steps)


def _tensor_and_state(
    storage: Any, offset: Any, size: Any, stride: Any, gradient: Any = None, hooks: Any = None, state: Any = None
) -> StoredTensor | OddTensor:
    if isinstance(state, dict) and cast(dict[Any, Any], state).get("neg"):
        return OddTensor("its values are stored with the opposite sign")
    return _tensor(storage, offset, size, stride)


def _typed_tensor(
    storage: Any, offset: Any, size: Any, stride: Any, gradient: Any, hooks: Any, dtype: Any, *_: Any
) -> StoredTensor | OddTensor:
    return _tensor(storage, offset, size, stride, dtype=str(dtype))


def _first(data: Any, *_: Any) -> Any:
    return data


def _from_type(make: Any, kind: Any, arguments: Any, state: Any) -> Any:
    return make(*arguments)


def _odd(reason: str) -> Callable[..., OddTensor]:
    return lambda *_: OddTensor(reason)


_KNOWN: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor_and_state,
    ("torch._utils", "_rebuild_tensor_v3"): _typed_tensor,
    ("torch._utils", "_rebuild_parameter"): _first,
    ("torch._utils", "_rebuild_parameter_with_state"): _first,
    ("torch._utils", "_rebuild_device_tensor_from_cpu_tensor"): _first,
    ("torch._tensor", "_rebuild_from_type_v2"): _from_type,
    ("torch._utils", "_rebuild_qtensor"): _odd("it is stored as quantised values, not as plain floats"),
    ("torch._utils", "_rebuild_sparse_tensor"): _odd("it is stored as a sparse tensor, not as plain floats"),
    ("torch._utils", "_rebuild_nested_tensor"): _odd("it is stored as a nested tensor, not as plain floats"),
    ("torch._utils", "_rebuild_meta_tensor_no_storage"): _odd("it holds no values (meta device)"),
    ("torch._utils", "_rebuild_wrapper_subclass"): _odd("it is a tensor of a kind of its own"),
    ("torch.nn.parameter", "Parameter"): Record,
    ("torch.serialization", "_get_layout"): Record,
    ("torch", "Tensor"): Record,
    ("torch", "device"): Record,
    ("_codecs", "encode"): Record,
    ("builtins", "bytearray"): Record,
    ("builtins", "complex"): Record,
    ("builtins", "set"): set,
    ("torch", "Size"): tuple,
    ("collections", "OrderedDict"): _Table,
    ("collections", "Counter"): _Table,
}
_STORAGES = {"DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "LongStorage": "int64"}
_STORAGES |= {"BFloat16Storage": "bfloat16", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8"}
_STORAGES |= {"ByteStorage": "uint8", "UntypedStorage": "uint8", "BoolStorage": "bool", "QInt8Storage": "qint8"}
_STORAGES |= {"ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128", "QInt32Storage": "qint32"}
_STORAGES |= {"QUInt8Storage": "quint8", "QUInt4x2Storage": "quint4x2", "QUInt2x4Storage": "quint2x4"}


class _Reader(pickle.Unpickler):
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.storages: dict[str, Storage] = {}

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        # The second protocol, which torch uses, has the names of Python 2.
        known = _KNOWN.get((module_name.replace("__builtin__", "builtins"), global_name))
        if known is not None:
            return known
        if module_name in ("torch", "torch.cuda", "torch.storage") and global_name in _STORAGES:
            return _STORAGES[global_name]
        if module_name == "torch" and "." not in global_name:
            return global_name  # a dtype or another constant: only its name is wanted, and text cannot be called
        raise ForeignObjectError(f"{module_name}.{global_name}")

    def persistent_load(self, pid: Any) -> Any:
        kind, dtype, key, _, count, *view = pid
        if kind != "storage" or not isinstance(dtype, str) or type(count) is not int or not 0 <= count < 1 << 62:
            raise pickle.UnpicklingError("it refers to something outside")
        self.storages[str(key)] = storage = Storage(str(key), dtype, count)
        if view and view[0] is not None:  # of files before torch 0.4: a part of a storage
            _, first, count = view[0]
            return Storage(str(key), dtype, count, first)
        return storage


def read_pickle(data: bytes) -> tuple[Any, dict[str, Storage]]:
    """The object, with descriptions for tensors, and the storages that they lie in. Check its bounds before."""
    reader = _Reader(data)
    return reader.load(), reader.storages
