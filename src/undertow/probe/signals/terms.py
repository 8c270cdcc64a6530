"""From what is differentiated back to the loss functions in it, and the constants between them.

Only the few nodes next to the root are looked at: sums, means, constant factors, casts. A term whose value reaches
the root by anything else has no factor.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from undertow.probe.signals.nodes import (
    SAME_VALUES,
    Edge,
    Node,
    edges,
    is_leaf,
    only_edge,
    operation,
    producer,
    saved,
    saved_tensor,
    shape_of,
    signed,
)
from undertow.schema import LossKind, LossReduction

MAX_NODES = 96  # looked at in one search
_FEW_LEVELS = 1 << 10  # quantiles; more numbers are no levels

_FUNCTIONS = {
    "NllLoss": LossKind.NEGATIVE_LOG_LIKELIHOOD,
    "NllLossNd": LossKind.NEGATIVE_LOG_LIKELIHOOD,
    "NllLoss2D": LossKind.NEGATIVE_LOG_LIKELIHOOD,
    "CtcLoss": LossKind.ALIGNMENT,
    "CudnnCtcLoss": LossKind.ALIGNMENT,
    "MseLoss": LossKind.MEAN_SQUARE,
    "SmoothL1Loss": LossKind.ABSOLUTE,
    "HuberLoss": LossKind.ABSOLUTE,
    "BinaryCrossEntropy": LossKind.BINARY_OF_PROBABILITIES,
    "BinaryCrossEntropyWithLogits": LossKind.BINARY_OF_LOGITS,
}
_REDUCTIONS = {0: LossReduction.NONE, 1: LossReduction.MEAN, 2: LossReduction.SUM}
# Here the search ends: these belong to the model, not to the arithmetic between it and the loss.
_MODEL = frozenset({
    "Addmm", "Mm", "Bmm", "Baddbmm", "Mv", "Addmv", "Convolution", "Embedding", "EmbeddingBag", "NativeBatchNorm",
    "NativeLayerNorm", "NativeGroupNorm", "Softmax", "LogSoftmax", "Relu", "Gelu", "Silu", "Tanh", "Sigmoid",
    "MkldnnRnnLayer", "CudnnRnn", "CudnnBatchNorm",
})  # fmt: skip
_CHOOSING = frozenset({"Slice", "Select", "Index", "MaskedSelect", "MaskedFill", "Where", "Clamp", "ClampMin"})


@dataclass(frozen=True, slots=True)
class Term:
    """One loss function in the sum that is differentiated."""

    kind: float
    node: Node  # the loss function, or the operation that stands for it where it is written out by hand
    given: Edge | None  # where its prediction came from
    by_hand: bool
    factor: float  # NaN when it is not a product of constants
    reduction: float
    depth: int


@dataclass(frozen=True, slots=True)
class _Path:
    """What lies between the root and here."""

    factor: float = 1.0  # NaN: not constant
    averaged: int = 1  # elements that means were taken over
    selected: bool = False  # a part was chosen below a mean
    summed: bool = False
    divisors: tuple[float, ...] = ()
    depth: int = 0

    def times(self, factor: float) -> _Path:
        return replace(self, factor=self.factor * factor, depth=self.depth + 1)

    @property
    def is_constant(self) -> bool:
        return not math.isnan(self.factor)


def find_terms(root: torch.Tensor, loss_scale: int | None = None) -> list[Term]:
    """The loss functions of this loss, nearest first. `loss_scale`: where a scaler keeps its factor, which is none."""
    return find_terms_and_weights(root, loss_scale)[0]


def find_terms_and_weights(root: torch.Tensor, loss_scale: int | None = None) -> tuple[list[Term], bool]:
    """And whether anything before them is multiplied by weights of its rows, as log-probabilities by advantages."""
    if root.grad_fn is None:
        return [], False
    queue: deque[tuple[Edge, _Path]] = deque([((root.grad_fn, int(root.output_nr)), _Path())])
    seen: set[Node] = set()
    found: list[Term] = []
    has_weights = False
    while queue and len(seen) < MAX_NODES:
        edge, path = queue.popleft()
        node = edge[0]
        if node in seen or is_leaf(node):
            continue
        seen.add(node)
        term = _term(edge, path)
        if term is not None:
            found.append(term)
        elif operation(node) not in _MODEL:
            has_weights |= operation(node) == "Mul" and _has_weights(node)
            queue.extend(_beyond(edge, path, loss_scale))
    return found, has_weights


def _has_weights(node: Node) -> bool:
    constant = constant_factor(node) if sum(one is not None for one in edges(node)) == 1 else None
    return isinstance(constant, torch.Tensor) and constant.numel() > 1


# -- is this a loss function? ----------------------------------------------------------------------------------


def _term(edge: Edge, path: _Path) -> Term | None:
    node = edge[0]
    name = operation(node)
    kind = _FUNCTIONS.get(name)
    if kind is not None:
        given = only_edge(node)
        made_by = producer(given)
        if kind == LossKind.NEGATIVE_LOG_LIKELIHOOD and made_by is not None and operation(made_by[0]) == "LogSoftmax":
            kind = LossKind.CROSS_ENTROPY
        factor, reduction = _reduced(edge, path, _REDUCTIONS.get(saved(node, "reduction"), LossReduction.NONE))
        return Term(kind, node, given, False, factor, reduction, path.depth)
    by_hand = _BY_HAND.get(name)
    return by_hand(edge, path) if by_hand is not None and path.is_constant else None


def _reduced(edge: Edge, path: _Path, reduction: float) -> tuple[float, float]:
    """The factor and the reduction; a loss per row that the user averages counts as one that averages itself."""
    shape = shape_of(edge)
    values = math.prod(shape) if shape is not None else 1
    if reduction == LossReduction.SUM:
        rows = next((count for count in _row_counts(edge[0]) if count in path.divisors), 0)
        return _by_user(replace(path, summed=True, factor=path.factor / path.averaged, averaged=1), rows)
    if reduction == LossReduction.MEAN or values <= 1:
        return path.factor / path.averaged, reduction
    return _by_user(path, values)


def _row_counts(node: Node) -> tuple[int, ...]:
    """What a sum may be divided by to become a mean: over all elements, or over samples."""
    targets = saved_tensor(node, "target")
    return () if targets is None or not targets.dim() else (targets.numel(), targets.shape[0])


def _by_user(path: _Path, rows: int) -> tuple[float, float]:
    if path.averaged > 1:
        # Chosen rows are averaged, or sums of rows are (over features, over tokens): no constant is involved.
        as_it_is = path.selected or (path.summed and rows % path.averaged == 0)
        return path.factor * (1.0 if as_it_is else rows / path.averaged), LossReduction.MEAN
    if path.summed:
        if rows in path.divisors:  # a sum divided by its number of rows is a mean
            return path.factor * rows, LossReduction.MEAN
        return path.factor, LossReduction.SUM
    return path.factor, LossReduction.NONE


def _picked(edge: Edge, path: _Path) -> Term | None:
    """`-log_softmax(x).gather(1, labels)`, or the same with indexing."""
    given = only_edge(edge[0])
    made_by = producer(given)
    shape = shape_of(edge)
    if made_by is None or operation(made_by[0]) != "LogSoftmax" or shape is None:
        return None
    factor, reduction = _by_user(path, math.prod(shape))
    return Term(LossKind.CROSS_ENTROPY, edge[0], given, True, -factor, reduction, path.depth)


def _weighted(edge: Edge, path: _Path, kind: float = LossKind.CROSS_ENTROPY) -> Term | None:
    """`-(targets * log_softmax(x)).sum(1)`: targets are class probabilities."""
    given = only_edge(edge[0])
    targets = constant_factor(edge[0])
    made_by = producer(given)
    shape = shape_of(edge)
    if made_by is None or shape is None or len(shape) < 2 or not isinstance(targets, torch.Tensor):
        return None
    if tuple(targets.shape) != shape or operation(made_by[0]) not in _LOG_PROBABILITIES[kind]:
        return None
    factor, reduction = _by_user(path, math.prod(shape) // class_count(made_by[0], shape))
    return Term(kind, edge[0], given, True, -factor, reduction, path.depth)


_LOG_PROBABILITIES: dict[float, frozenset[str]] = {
    LossKind.CROSS_ENTROPY: frozenset({"LogSoftmax"}),
    LossKind.DIVERGENCE: frozenset({"LogSoftmax", "Log", "Softmax"}),
}


def class_count(node: Node, shape: tuple[int, ...]) -> int:
    dimension = signed(saved(node, "dim"))
    return shape[dimension] if dimension is not None and -len(shape) <= dimension < len(shape) else shape[-1]


def _difference(kind: float) -> Callable[[Edge, _Path], Term | None]:
    def recognise(edge: Edge, path: _Path) -> Term | None:
        node = edge[0]
        if operation(node) == "Pow" and saved(node, "exponent") != 2:
            return None
        inside = next((one for one in edges(node) if one is not None), None)
        if inside is None or operation(inside[0]) != "Sub" or any(one not in (None, inside) for one in edges(node)):
            return None
        given, shape = only_edge(inside[0]), shape_of(edge)
        if given is None or is_leaf(given[0]) or shape is None:
            return None
        factor, reduction = _by_user(path, math.prod(shape))
        return Term(kind, node, given, True, factor, reduction, path.depth)

    return recognise


def _product(edge: Edge, path: _Path) -> Term | None:
    inputs = [one for one in edges(edge[0]) if one is not None]
    if len(inputs) == 2 and inputs[0] == inputs[1]:
        return _difference(LossKind.MEAN_SQUARE)(edge, path)
    return _weighted(edge, path) if len(inputs) == 1 else None


def _quantile(sign: float) -> Callable[[Edge, _Path], Term | None]:
    """`maximum(q * error, (q - 1) * error)`, the pinball loss; with `minimum` it is minus one for 1 - q."""

    def recognise(edge: Edge, path: _Path) -> Term | None:
        sides = [one for one in edges(edge[0]) if one is not None]
        if len(sides) != 2 or any(is_leaf(one[0]) or operation(one[0]) != "Mul" for one in sides):
            return None
        errors = [only_edge(one[0]) for one in sides]
        error, shape = errors[0], shape_of(edge)
        if error is None or error != errors[1] or is_leaf(error[0]) or operation(error[0]) != "Sub" or shape is None:
            return None
        above, below = (constant_factor(one[0]) for one in sides)
        if above is None or below is None or not _are_opposite(above, below):
            return None
        factor, reduction = _by_user(path, math.prod(shape))
        return Term(LossKind.ABSOLUTE, error[0], only_edge(error[0]), True, sign * factor, reduction, path.depth)

    return recognise


def _are_opposite(above: torch.Tensor | float, below: torch.Tensor | float) -> bool:
    product = torch.as_tensor(above).detach().cpu() * torch.as_tensor(below).detach().cpu()
    return product.numel() < _FEW_LEVELS and bool((product < 0).all())


def _divergence(edge: Edge, path: _Path) -> Term | None:
    """`targets * log(targets) - targets * log_probabilities`, as `kl_div` is written."""
    left, right = [*edges(edge[0]), None, None][:2]
    if left is not None or right is None or operation(right[0]) != "Mul":
        return None
    return _weighted(right, path.times(-1.0), LossKind.DIVERGENCE)


_BY_HAND: dict[str, Callable[[Edge, _Path], Term | None]] = {
    "Gather": _picked,
    "Index": _picked,
    "Pow": _difference(LossKind.MEAN_SQUARE),
    "Abs": _difference(LossKind.ABSOLUTE),
    "Mul": _product,
    "Sub": _divergence,
    "Maximum": _quantile(1.0),
    "Minimum": _quantile(-1.0),
}


# -- if not, what lies beyond? ---------------------------------------------------------------------------------


def _beyond(edge: Edge, path: _Path, loss_scale: int | None) -> list[tuple[Edge, _Path]]:
    node = edge[0]
    name, inputs = operation(node), edges(node)
    present = [one for one in inputs if one is not None]
    on = replace(path, depth=path.depth + 1)
    if name == "Add" and len(present) == 2:
        smoothed = _smoothed(present)
        if smoothed is not None:
            return [(smoothed, on)]
    if name in _CHOOSING:
        return [(one, replace(on, selected=True)) for one in present]
    if name in SAME_VALUES or name in ("Add", "Stack", "Cat"):
        return [(one, on) for one in present]
    if name == "Sub":
        return [(one, path.times(1.0 if place == 0 else -1.0)) for place, one in enumerate(inputs) if one is not None]
    if name in ("Neg", "Rsub"):
        return [(one, path.times(-1.0)) for one in present]
    if name == "Sum":
        return [(one, replace(on, summed=True)) for one in present]
    if name == "Mean":
        return [(one, replace(on, averaged=path.averaged * _averaged(node))) for one in present]
    if name in ("Mul", "Div") and len(present) == 1:
        constant = constant_factor(node)
        if isinstance(constant, torch.Tensor) and constant.data_ptr() == loss_scale:
            return [(present[0], on)]
        number = number_of(constant)
        if name == "Div" and inputs[0] is None:
            number = math.nan
        elif name == "Div" and number is not None:
            path = replace(path, divisors=(*path.divisors, number))
            number = 1.0 / number if number else math.nan
        return [(present[0], path.times(math.nan if number is None else number))]
    return [(one, path.times(math.nan)) for one in present]


def constant_factor(node: Node) -> torch.Tensor | float | None:
    """What a product with one differentiable side, or a quotient, was multiplied with or divided by."""
    inputs = edges(node)
    of_self = bool(inputs) and inputs[0] is not None
    value = saved(node, "other" if of_self else "self")
    return value if isinstance(value, (torch.Tensor, int, float)) else None


def number_of(value: torch.Tensor | float | None) -> float | None:
    if not isinstance(value, torch.Tensor):
        return None if value is None else float(value)
    if value.numel() != 1 or value.device.type != "cpu" or value.is_complex():
        return None  # a factor per row, or one that the training would have to wait for
    return float(value.item())


def _averaged(node: Node) -> int:
    sizes, dimensions = saved(node, "self_sym_sizes"), saved(node, "dim")
    if isinstance(dimensions, (tuple, list)) and dimensions and isinstance(sizes, (tuple, list)):
        return math.prod(int(sizes[signed(one) or 0]) for one in dimensions)
    count = saved(node, "self_sym_numel")
    if isinstance(count, int):
        return count
    return math.prod(int(size) for size in sizes) if isinstance(sizes, (tuple, list)) else 1


def _smoothed(branches: list[Edge]) -> Edge | None:
    """Cross-entropy with label smoothing is a sum of two weighted parts: the edge of its ordinary part."""
    weights: list[float] = []
    for edge in branches:
        number = number_of(constant_factor(edge[0])) if operation(edge[0]) == "Mul" else None
        if number is None:
            return None
        weights.append(number)
    for place, edge in enumerate(branches):
        inside = only_edge(edge[0])
        if inside is None or not operation(inside[0]).startswith("NllLoss"):
            continue
        given = saved_tensor(inside[0], "self")
        if given is None or given.dim() < 1:
            return None
        classes = given.shape[1] if given.dim() > 1 else given.shape[0]
        if math.isclose(weights[place] + weights[1 - place] * classes, 1.0, rel_tol=1e-4):
            return inside
    return None
