"""Reading single nodes of an autograd graph: what they are, what they saved, what shape they put out.

Saved tensors are looked at and let go. A node whose values cannot be had (freed, overwritten, a subclass of
tensor, kept by hooks of the user's as in checkpointing) answers None, and the signal is then absent.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from undertow.probe.distributed.portions import is_freed

Node = Any  # torch.autograd.graph.Node; its methods are not typed
Edge = tuple[Node, int]

# Before torch 2.7 nobody can tell whether hooks keep a saved tensor; unpacking one could run the user's code again.
SHOWS_HOOKS = hasattr(getattr(torch._C, "_autograd").SavedTensor, "unpack_hook")  # noqa: B009

MAX_ELEMENTS = 1 << 20  # of one tensor; larger ones are read from their first rows

# Operations that show the same values in another shape, order or number format, or a part of them.
SAME_VALUES = frozenset({
    "View", "UnsafeView", "ReshapeAlias", "Transpose", "Permute", "T", "Squeeze", "Unsqueeze", "ToCopy", "Clone",
    "Alias", "Expand", "Slice", "AsStrided", "Unfold", "Split", "SplitWithSizes", "Chunk",
})  # fmt: skip


def operation(node: Node) -> str:
    """The name of what ran forward: `AddmmBackward0` → `Addmm`."""
    return _operation(node.name())


@lru_cache(1024)
def _operation(name: str) -> str:
    return name.rpartition("::")[2].rstrip("0123456789").removesuffix("Backward")


def saved(node: Node, name: str) -> Any:
    """A value the node saved; tensors come without history, None when it has none to show."""
    try:
        if _is_hooked(getattr(node, f"_raw_saved_{name}", None)):
            return None
        value = getattr(node, f"_saved_{name}")
    except (RuntimeError, AttributeError):
        return None
    if not isinstance(value, torch.Tensor):
        return value
    if type(value) not in (torch.Tensor, nn.Parameter) or value.device.type == "meta" or is_freed(value):
        return None
    return value.detach()


def _is_hooked(raw: Any) -> bool:
    if isinstance(raw, (tuple, list)):
        return any(map(_is_hooked, raw))
    return getattr(raw, "unpack_hook", None) is not None


def saved_tensor(node: Node, name: str) -> torch.Tensor | None:
    value = saved(node, name)
    return value if isinstance(value, torch.Tensor) else None


def signed(value: Any) -> int | None:
    """Dimensions and indices are saved as unsigned numbers: -1 reads as 2**64 - 1."""
    if not isinstance(value, int):
        return None
    return value - (1 << 64) if value >= 1 << 63 else value


def edges(node: Node) -> list[Edge | None]:
    """Where the inputs came from; None for an input that needs no gradient."""
    return [None if upstream is None else (upstream, index) for upstream, index in node.next_functions]


def is_leaf(node: Node) -> bool:
    return hasattr(node, "variable")


def shape_of(edge: Edge) -> tuple[int, ...] | None:
    """The shape of what ran along this edge."""
    node, index = edge
    try:
        return tuple(int(size) for size in node._input_metadata[index].shape)
    except (RuntimeError, AttributeError, IndexError, TypeError):
        return None


def only_edge(node: Node) -> Edge | None:
    """The one input that needs a gradient, when there is exactly one."""
    found = [edge for edge in edges(node) if edge is not None]
    return found[0] if len(found) == 1 else None


def producer(edge: Edge | None, through: frozenset[str] = SAME_VALUES) -> Edge | None:
    """What made these values, behind operations that only show them differently."""
    for _ in range(16):
        if edge is None or is_leaf(edge[0]) or operation(edge[0]) not in through:
            break
        edge = only_edge(edge[0])
    return edge


def upstream(edge: Edge | None, through: frozenset[str], limit: int = 16) -> Iterator[Edge]:
    """Nodes from here towards the input along operations with a single input; the last one may be of any kind."""
    for _ in range(limit):
        if edge is None or is_leaf(edge[0]):
            return
        yield edge
        if operation(edge[0]) not in through:
            return
        edge = only_edge(edge[0])


def first_rows(values: torch.Tensor, limit: int = MAX_ELEMENTS) -> torch.Tensor:
    """The leading rows, so that at most about `limit` elements are read."""
    if values.dim() == 0 or values.numel() <= limit:
        return values
    per_row = max(1, values.numel() // values.shape[0])
    return values[: max(1, limit // per_row)]


def parameter_at(node: Node, place: int) -> torch.Tensor | None:
    """The parameter that is an operation's input at this place, as the module holds it."""
    found = edges(node)
    made_by = producer(found[place]) if place < len(found) else None
    variable: Any = getattr(made_by[0], "variable", None) if made_by is not None else None
    if type(variable) not in (torch.Tensor, nn.Parameter) or is_freed(variable):
        return None
    return variable.detach()
