"""Bringing a user's tensor into a form that kernels read: dense, row-major, a floating dtype."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

# The formats the native kernel reads, and their numbers there.
FORMATS: dict[torch.dtype, int] = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements in logical row-major order, without history; a copy only where needed."""
    tensor = tensor.detach()
    if tensor.device.type == "meta":
        raise TypeError(f"cannot measure a tensor of dtype {tensor.dtype} on the meta device: it holds no values")
    if is_freed(tensor):
        raise FreedMemoryError
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.dtype.is_floating_point:
        raise TypeError(
            f"cannot measure a tensor of dtype {tensor.dtype}: only floating and complex tensors are measured"
        )
    if tensor.dtype not in FORMATS:  # float8 and the like
        tensor = tensor.to(torch.float32)
    return tensor.resolve_neg().contiguous()


class FreedMemoryError(TypeError):
    """A tensor whose memory was given back cannot be measured; its neighbours in the list can."""

    def __init__(self) -> None:
        super().__init__("cannot measure a tensor whose memory has been given back")


def is_freed(tensor: torch.Tensor) -> bool:
    """Its memory does not hold all of it any more: it has been given back (`untyped_storage().resize_(0)`), perhaps
    until it is needed again, or made smaller."""
    if tensor.layout is torch.sparse_coo:
        return is_freed(tensor._indices()) or is_freed(tensor._values())
    if tensor.layout is not torch.strided or not tensor.numel():
        return False
    if tensor.is_contiguous():
        last = tensor.storage_offset() + tensor.numel() - 1
        return tensor.untyped_storage().nbytes() < (last + 1) * tensor.element_size()
    last = tensor.storage_offset() + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
    return tensor.untyped_storage().nbytes() < (last + 1) * tensor.element_size()


def addresses_of(tensors: Sequence[torch.Tensor]) -> NDArray[np.int64]:
    """Of contiguous ones, for the last moment before they are read."""
    addresses = np.array([tensor.data_ptr() for tensor in tensors], np.int64)
    memory = [tensor.untyped_storage() for tensor in tensors]
    ends = np.array([one.data_ptr() + one.nbytes() for one in memory], np.int64)
    if (addresses + np.array([tensor.nbytes for tensor in tensors], np.int64) > ends).any():
        raise FreedMemoryError
    return addresses


def array_of(tensor: torch.Tensor) -> NDArray[Any]:
    """The user's own memory, on the processor, as an array for a moment. After `.numpy()` it could never be resized."""
    return np.from_dlpack(tensor.detach())
