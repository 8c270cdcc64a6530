"""Torch tensors as stored elements. Imported only when there is a torch tensor to read."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from undertow.checkpoints.checkpoint import Entry
from undertow.checkpoints.elements import STORED, Elements
from undertow.checkpoints.naming import kind_of
from undertow.checkpoints.stored_tensor import MOST_REPEATED
from undertow.schema.checkpoints import Skipped

_NAMES: dict[torch.dtype, str] = {getattr(torch, name): name for name in STORED if hasattr(torch, name)}
_BITS = {1: torch.uint8, 2: torch.int16}


def entry_of(path: str, tensor: torch.Tensor, kind: str = "") -> Entry | Skipped:
    tensor = whole_part(tensor)
    reason = _unsuitable(tensor)
    if reason:
        return Skipped(path, reason)
    dtype, shape = _NAMES[tensor.dtype], tuple(tensor.shape)
    entry = Entry(path, kind or kind_of(path, shape), shape, dtype, partial(elements_of, tensor))
    where = (tensor.data_ptr(), tensor.storage_offset(), shape, tensor.stride()) if tensor.numel() else None
    return replace(entry, storage=where)


def whole_part(tensor: Any) -> Any:
    """Of a tensor spread over devices, what lies here, if that is all of it; gathering it would take every rank."""
    if hasattr(tensor, "full_tensor"):
        replicated = all(placement.is_replicate() for placement in tensor.placements)
        return tensor.detach().to_local() if replicated or tensor.device_mesh.size() == 1 else tensor
    return tensor


def elements_of(tensor: torch.Tensor) -> Elements:
    """The values on the host, in row-major order; a copy only where the tensor is elsewhere or otherwise ordered."""
    dtype = _NAMES[tensor.dtype]
    plain = tensor.detach().resolve_neg().cpu().contiguous()
    if dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        plain = plain.view(_BITS[plain.element_size()])
    return Elements(plain.numpy().view(STORED[dtype]), dtype)


def _unsuitable(tensor: torch.Tensor) -> str:
    if hasattr(tensor, "full_tensor"):
        return "it is one rank's part of a tensor spread over devices: gather it on all ranks, or read the checkpoint"
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return f"stored as {tensor.layout if not tensor.is_quantized else 'quantised values'}, not as plain floats"
    if tensor.dtype not in _NAMES:
        return f"stored as {str(tensor.dtype).removeprefix('torch.')}, not as plain floats"
    if tensor.is_meta:
        return "it holds no values (meta device)"
    size, stored = tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()
    if size > max(stored, MOST_REPEATED):
        return f"it repeats {stored:,} stored bytes until they are {size:,}"
    return ""
