"""Values of an autograd graph: which operation made each, of what, what that saved, and what shape it has.

Saved tensors are read and released. Where they cannot be had (freed, overwritten, a subclass of tensor, kept by
hooks of the user's as in checkpointing) the answer is None, and the signal is then absent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Set
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import nn

from undertow.measure.kernels.tensors import is_freed

Node = Any  # torch.autograd.graph.Node; its methods are not typed
Factor = torch.Tensor | float

# Before torch 2.7 nobody can tell whether hooks keep a saved tensor; unpacking one could run the user's code again.
SHOWS_HOOKS = hasattr(getattr(torch._C, "_autograd").SavedTensor, "unpack_hook")  # noqa: B009

_NEAR = 64  # nodes between a loss and the nearest parameter
MAX_ELEMENTS = 1 << 20  # of one tensor; larger ones are read from their first rows

# Operations that show the same values in another shape, order or number format, or a part of them.
SAME_VALUES = frozenset({
    "View", "UnsafeView", "ReshapeAlias", "Transpose", "Permute", "T", "Squeeze", "Unsqueeze", "ToCopy", "Clone",
    "Alias", "Expand", "Slice", "AsStrided", "Unfold", "Split", "SplitWithSizes", "Chunk",
})  # fmt: skip
SUMS = SAME_VALUES | {"Add", "Mean", "Sum", "Stack", "Cat"}


class Value(NamedTuple):
    """What an operation put out. False for what needs no gradient, or does not exist; that was made by nothing."""

    node: Node
    output: int = 0  # which of its results

    def __bool__(self) -> bool:
        return self.node is not None

    @property
    def operation(self) -> str:
        """The name of what ran forward: `AddmmBackward0` → `Addmm`."""
        return "" if self.node is None else _operation(self.node.name())

    @property
    def is_leaf(self) -> bool:
        return hasattr(self.node, "variable")

    @property
    def sides(self) -> list[Value]:
        """What it was made of, in the order of the operation's inputs."""
        return [] if self.node is None else [_value(pair) for pair in self.node.next_functions]

    def side(self, place: int) -> Value:
        pairs = () if self.node is None else self.node.next_functions
        return _value(pairs[place]) if place < len(pairs) else NOTHING

    @property
    def inputs(self) -> list[Value]:
        """Those of its sides that need a gradient."""
        return [] if self.node is None else [_value(pair) for pair in self.node.next_functions if pair[0] is not None]

    @property
    def only(self) -> Value:
        """The one input that needs a gradient, when there is exactly one."""
        inputs = self.inputs
        return inputs[0] if len(inputs) == 1 else NOTHING

    @property
    def shape(self) -> tuple[int, ...] | None:
        try:
            return tuple(int(size) for size in self.node._input_metadata[self.output].shape)
        except (RuntimeError, AttributeError, IndexError, TypeError):
            return None

    def saved(self, name: str) -> Any:
        """A value the operation saved; tensors come without history, None when it has none to show."""
        try:
            if _is_hooked(getattr(self.node, f"_raw_saved_{name}", None)):
                return None
            value = getattr(self.node, f"_saved_{name}")
        except (RuntimeError, AttributeError):
            return None
        if not isinstance(value, torch.Tensor):
            return value
        if type(value) not in (torch.Tensor, nn.Parameter) or value.device.type == "meta" or is_freed(value):
            return None
        return value.detach()

    def tensor(self, name: str) -> torch.Tensor | None:
        value = self.saved(name)
        return value if isinstance(value, torch.Tensor) else None

    def integer(self, name: str) -> int | None:
        """Dimensions and indices are saved as unsigned numbers: -1 reads as 2**64 - 1."""
        return signed(self.saved(name))

    @property
    def factor(self) -> Factor | None:
        """What a product with one differentiable side, or a quotient, was multiplied with or divided by."""
        value = self.saved("other" if self.side(0) else "self")
        return value if isinstance(value, (torch.Tensor, int, float)) else None

    def producer(self, through: Set[str] = SAME_VALUES) -> Value:
        """What made these values, behind operations that only show them differently."""
        value = self
        for _ in range(16):
            if value.operation not in through:
                break
            value = value.only
        return value

    def parameter_at(self, place: int) -> torch.Tensor | None:
        """The parameter that is an operation's input at this place, as the module holds it."""
        variable: Any = getattr(self.side(place).producer().node, "variable", None)
        if type(variable) not in (torch.Tensor, nn.Parameter) or is_freed(variable):
            return None
        return variable.detach()

    def summands(self, sums: Set[str] = SUMS) -> list[tuple[Value, Factor]]:
        """What it adds up, each with the constant in front of it; nothing for an operation that does something else."""
        name, sides = self.operation, self.sides
        inputs = [side for side in sides if side]
        if name in sums:
            return [(one, 1.0) for one in inputs]
        if name == "Sub":
            return [(one, -1.0 if place else 1.0) for place, one in enumerate(sides) if one]
        if name in ("Neg", "Rsub"):
            return [(one, -1.0) for one in inputs]
        if len(inputs) == 1 and (name == "Mul" or (name == "Div" and sides[0])):
            factor = self.factor
            return [] if factor is None else [(inputs[0], factor)]
        return []


NOTHING = Value(None)
_value: Callable[[tuple[Node, int]], Value] = partial(tuple.__new__, Value)  # in half the time that a call of it takes


@lru_cache(1024)
def _operation(name: str) -> str:
    return name.rpartition("::")[2].rstrip("0123456789").removesuffix("Backward")


def _is_hooked(raw: Any) -> bool:
    if isinstance(raw, (tuple, list)):
        return any(map(_is_hooked, raw))
    return getattr(raw, "unpack_hook", None) is not None


def value_of(root: torch.Tensor) -> Value:
    return Value(root.grad_fn, int(root.output_nr))


def signed(value: Any) -> int | None:
    if not isinstance(value, int):
        return None
    return value - (1 << 64) if value >= 1 << 63 else value


def number_of(factor: Factor | None) -> float | None:
    """None for a factor per row, or one that the training would have to wait for."""
    if not isinstance(factor, torch.Tensor):
        return None if factor is None else float(factor)
    if factor.numel() != 1 or factor.device.type != "cpu" or factor.is_complex():
        return None
    return float(factor.item())


def first_rows(values: torch.Tensor, limit: int = MAX_ELEMENTS) -> torch.Tensor:
    """The leading rows, so that at most about `limit` elements are read."""
    if values.dim() == 0 or values.numel() <= limit:
        return values
    per_row = max(1, values.numel() // values.shape[0])
    return values[: max(1, limit // per_row)]


def nearest_parameter(given: Value) -> int | None:
    """The id of the tensor, of the fewest operations away; a single number (a temperature, a scale) is none."""
    waiting = deque([given])
    seen: set[Node] = set()
    while waiting and len(seen) < _NEAR:
        value = waiting.popleft()
        if value.node in seen:
            continue
        seen.add(value.node)
        waiting += value.inputs
        if value.is_leaf and value.node.variable.dim() > 0:
            return id(value.node.variable)
    return None
