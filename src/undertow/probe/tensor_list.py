"""Lists of watched tensors that are asked about at every step: few calls for a whole list, whatever its length."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray

from undertow.measure.kernels.interface import Kernel
from undertow.probe.readings import Reading

try:
    from undertow.measure.kernels import _native  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]

    have_gradient = _native.which_have_gradient  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    are_trainable = _native.which_are_trainable  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    single = _native.single  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    sample = _native.sample  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
except (ImportError, AttributeError):  # built without a C compiler, or from older sources

    def have_gradient(references: list[ref[torch.Tensor]]) -> bytes:
        return bytes((tensor := one()) is not None and tensor.grad is not None for one in references)

    def are_trainable(references: list[ref[torch.Tensor]]) -> bytes:
        return bytes((tensor := one()) is not None and tensor.requires_grad for one in references)

    def single(tensor: torch.Tensor, dtype: torch.dtype) -> float | None:
        """The value of a tensor of one element, of this type, on the processor; else None, or when nobody knows."""

    def sample(tensor: torch.Tensor, dtype: torch.dtype, wanted: int) -> bytes | None:
        """About so many evenly spaced elements, as float64; None when it is of another type, or nobody knows."""


__all__ = ["TensorList", "are_trainable", "have_gradient", "sample", "single"]


@dataclass(slots=True, eq=False)
class TensorList:
    """Some watched parameters, or their gradients. Made once for equal slots, so that it is known by identity.

    Parameters are the user's, so they are referred to weakly: what is gone is missing.
    """

    slots: NDArray[np.int64]
    references: list[ref[torch.Tensor]]
    of_gradients: bool
    asked: bool = False  # whether the native kernel can read them where they lie
    plain: Any = None  # and how, if it can
    is_spread: bool = False  # this process holds only parts of some
    sizes: list[int] | None = None  # elements of each, where these are known
    resized: Callable[[], None] | None = None  # called when one has others: its data was replaced
    some_are_empty: bool = False  # of those that were not, for now: their memory was given back

    @property
    def parameters(self) -> list[torch.Tensor]:
        return [tensor for one in self.references if (tensor := one()) is not None]

    def tensors(self) -> list[torch.Tensor]:
        if not self.of_gradients:
            return self.parameters
        return [gradient for parameter in self.parameters if (gradient := parameter.grad) is not None]

    def complete(self) -> list[torch.Tensor] | None:
        """All of them; None where one is gone, or has got another size."""
        tensors = self.tensors()
        if len(tensors) != len(self.slots):
            return None
        counts = self.sizes if self.sizes is None else [tensor.numel() for tensor in tensors]
        self.some_are_empty = counts != self.sizes
        if counts is None or self.sizes is None or not self.some_are_empty:
            return tensors
        if any(count not in (0, size) for count, size in zip(counts, self.sizes)):
            if self.resized is not None:
                self.resized()
            return None
        return tensors

    def placed(
        self, readings: list[Reading], tensors: Sequence[torch.Tensor], kernel_for: Callable[[str], Kernel]
    ) -> list[Reading]:
        """Readings of these tensors as readings of the whole, where this process holds only a part of it."""
        return readings
