"""Bringing a user's tensor into a form that kernels read: dense, row-major, a floating dtype."""

import torch

# The formats the native kernel reads, and their numbers there.
FORMATS: dict[torch.dtype, int] = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements in logical row-major order, without history; a copy only where needed."""
    tensor = tensor.detach()
    if tensor.device.type == "meta":
        raise TypeError(f"cannot measure a tensor of dtype {tensor.dtype} on the meta device: it holds no values")
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
