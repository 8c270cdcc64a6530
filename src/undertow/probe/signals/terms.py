"""From what is differentiated back to the loss functions in it, and the constants between them.

Only the few nodes next to the root are visited: sums, means, constant factors, casts. A term whose value reaches
the root by anything else has no factor.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace

import torch

from undertow.probe.signals.graph_values import SAME_VALUES, Factor, Node, Value, number_of, signed, value_of
from undertow.schema import LossKind, LossReduction

MAX_NODES = 96  # visited in one search
_FEW_LEVELS = 1 << 10  # quantiles; more numbers are no levels

_FUNCTIONS = {
    **dict.fromkeys(("NllLoss", "NllLossNd", "NllLoss2D"), LossKind.NEGATIVE_LOG_LIKELIHOOD),
    **dict.fromkeys(("CtcLoss", "CudnnCtcLoss"), LossKind.ALIGNMENT),
    **dict.fromkeys(("SmoothL1Loss", "HuberLoss"), LossKind.ABSOLUTE),
    "MseLoss": LossKind.MEAN_SQUARE,
    "BinaryCrossEntropy": LossKind.BINARY_OF_PROBABILITIES,
    "BinaryCrossEntropyWithLogits": LossKind.BINARY_OF_LOGITS,
}
_REDUCTIONS = {0: LossReduction.NONE, 1: LossReduction.MEAN, 2: LossReduction.SUM}
_LOG_PROBABILITIES: dict[float, tuple[str, ...]] = {
    LossKind.CROSS_ENTROPY: ("LogSoftmax",),
    LossKind.DIVERGENCE: ("LogSoftmax", "Log", "Softmax"),
}
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
    value: Value  # of the loss function, or of the operation that stands for it where it is written out by hand
    given: Value  # its prediction
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


def find_terms(root: torch.Tensor, loss_scale: int | None = None) -> tuple[list[Term], bool]:
    """The loss functions of this loss, nearest first, and whether anything before them is multiplied by weights of its
    rows, as log-probabilities by advantages. `loss_scale`: where a scaler keeps its factor, which is none.
    """
    queue: deque[tuple[Value, _Path]] = deque([(value_of(root), _Path())])
    seen: set[Node] = set()
    found: list[Term] = []
    has_weights = False
    while queue and len(seen) < MAX_NODES:
        value, path = queue.popleft()
        if value.node in seen or value.is_leaf:
            continue
        seen.add(value.node)
        name = value.operation
        term = _term(name, value, path)
        if term is not None:
            found.append(term)
        elif name not in _MODEL:
            if name == "Mul" and value.only:
                constant = value.factor
                has_weights |= isinstance(constant, torch.Tensor) and constant.numel() > 1
            queue.extend(_beyond(name, value, path, loss_scale))
    return found, has_weights


# -- is this a loss function? ----------------------------------------------------------------------------------


def _term(name: str, value: Value, path: _Path) -> Term | None:
    kind = _FUNCTIONS.get(name)
    if kind is None:
        by_hand = _BY_HAND.get(name)
        return by_hand(value, path) if by_hand is not None and not math.isnan(path.factor) else None
    given = value.only
    if kind == LossKind.NEGATIVE_LOG_LIKELIHOOD and given.producer().operation == "LogSoftmax":
        kind = LossKind.CROSS_ENTROPY
    factor, reduction = _reduced(value, path, _REDUCTIONS.get(value.saved("reduction"), LossReduction.NONE))
    return Term(kind, value, given, False, factor, reduction, path.depth)


def _reduced(value: Value, path: _Path, reduction: float) -> tuple[float, float]:
    """The factor and the reduction; a loss per row that the user averages counts as one that averages itself."""
    if reduction == LossReduction.SUM:
        targets = value.tensor("target")  # divided by all of them, or by the samples, a sum is a mean
        counts = () if targets is None or not targets.dim() else (targets.numel(), targets.shape[0])
        rows = next((count for count in counts if count in path.divisors), 0)
        return _by_user(replace(path, summed=True, factor=path.factor / path.averaged, averaged=1), rows)
    values = math.prod(value.shape or ())
    if reduction == LossReduction.MEAN or values <= 1:
        return path.factor / path.averaged, reduction
    return _by_user(path, values)


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


def _written_out(kind: float, value: Value, given: Value, path: _Path, rows: int, sign: float = 1.0) -> Term:
    factor, reduction = _by_user(path, rows)
    return Term(kind, value, given, True, sign * factor, reduction, path.depth)


def _picked(value: Value, path: _Path) -> Term | None:
    """`-log_softmax(x).gather(1, labels)`, or the same with indexing."""
    given, shape = value.only, value.shape
    if given.producer().operation != "LogSoftmax" or shape is None:
        return None
    return _written_out(LossKind.CROSS_ENTROPY, value, given, path, math.prod(shape), sign=-1.0)


def _weighted(value: Value, path: _Path, kind: float = LossKind.CROSS_ENTROPY) -> Term | None:
    """`-(targets * log_softmax(x)).sum(1)`: targets are class probabilities."""
    made_by, targets, shape = value.only.producer(), value.factor, value.shape
    if shape is None or len(shape) < 2 or not isinstance(targets, torch.Tensor) or tuple(targets.shape) != shape:
        return None
    if made_by.operation not in _LOG_PROBABILITIES[kind]:
        return None
    return _written_out(kind, value, value.only, path, math.prod(shape) // class_count(made_by, shape), sign=-1.0)


def class_count(softmax: Value, shape: tuple[int, ...]) -> int:
    dimension = softmax.integer("dim")
    return shape[dimension] if dimension is not None and -len(shape) <= dimension < len(shape) else shape[-1]


def _difference(value: Value, path: _Path) -> Term | None:
    """A square, or an absolute value, of prediction minus target."""
    if value.operation == "Pow" and value.saved("exponent") != 2:
        return None
    inputs, shape = set(value.inputs), value.shape
    inside = inputs.pop() if len(inputs) == 1 else None
    if inside is None or inside.operation != "Sub" or not inside.only or inside.only.is_leaf or shape is None:
        return None
    kind = LossKind.ABSOLUTE if value.operation == "Abs" else LossKind.MEAN_SQUARE
    return _written_out(kind, value, inside.only, path, math.prod(shape))


def _product(value: Value, path: _Path) -> Term | None:
    return _weighted(value, path) if value.only else _difference(value, path)


def _quantile(value: Value, path: _Path) -> Term | None:
    """`maximum(q * error, (q - 1) * error)`, the pinball loss; with `minimum` it is minus one for 1 - q."""
    sides, shape = value.inputs, value.shape
    errors = {side.only for side in sides}
    if [side.operation for side in sides] != ["Mul", "Mul"] or len(errors) != 1 or shape is None:
        return None
    error = errors.pop()
    above, below = (side.factor for side in sides)
    if error.operation != "Sub" or above is None or below is None or not _are_opposite(above, below):
        return None
    sign = 1.0 if value.operation == "Maximum" else -1.0
    return _written_out(LossKind.ABSOLUTE, error, error.only, path, math.prod(shape), sign)


def _are_opposite(above: Factor, below: Factor) -> bool:
    product = torch.as_tensor(above).detach().cpu() * torch.as_tensor(below).detach().cpu()
    return product.numel() < _FEW_LEVELS and bool((product < 0).all())


def _divergence(value: Value, path: _Path) -> Term | None:
    """`targets * log(targets) - targets * log_probabilities`, as `kl_div` is written."""
    if value.side(0) or value.side(1).operation != "Mul":
        return None
    return _weighted(value.side(1), path.times(-1.0), LossKind.DIVERGENCE)


_BY_HAND = {
    **dict.fromkeys(("Gather", "Index"), _picked),
    **dict.fromkeys(("Pow", "Abs"), _difference),
    **dict.fromkeys(("Maximum", "Minimum"), _quantile),
    "Mul": _product,
    "Sub": _divergence,
}


# -- if not, what lies beyond? ---------------------------------------------------------------------------------


def _beyond(name: str, value: Value, path: _Path, loss_scale: int | None) -> list[tuple[Value, _Path]]:
    inputs = value.inputs
    on = replace(path, depth=path.depth + 1)
    if name == "Add" and len(inputs) == 2 and (smoothed := _smoothed(inputs)):
        return [(smoothed, on)]
    if name in ("Sub", "Neg", "Rsub"):
        return [(one, path.times(number_of(sign) or 1.0)) for one, sign in value.summands()]
    if name in ("Mul", "Div") and len(inputs) == 1:
        constant = value.factor
        if isinstance(constant, torch.Tensor) and constant.data_ptr() == loss_scale:
            return [(inputs[0], on)]
        number = number_of(constant)
        if name == "Div" and not value.side(0):
            number = math.nan
        elif name == "Div" and number is not None:
            path = replace(path, divisors=(*path.divisors, number))
            number = 1.0 / number if number else math.nan
        return [(inputs[0], path.times(math.nan if number is None else number))]
    if name in _CHOOSING:
        on = replace(on, selected=True)
    elif name == "Sum":
        on = replace(on, summed=True)
    elif name == "Mean":
        on = replace(on, averaged=path.averaged * _averaged(value))
    elif name not in SAME_VALUES and name not in ("Add", "Stack", "Cat"):
        on = path.times(math.nan)
    return [(one, on) for one in inputs]


def _averaged(mean: Value) -> int:
    sizes, dimensions = mean.saved("self_sym_sizes"), mean.saved("dim")
    if isinstance(dimensions, (tuple, list)) and dimensions and isinstance(sizes, (tuple, list)):
        return math.prod(int(sizes[signed(one) or 0]) for one in dimensions)
    count = mean.saved("self_sym_numel")
    if isinstance(count, int):
        return count
    return math.prod(int(size) for size in sizes) if isinstance(sizes, (tuple, list)) else 1


def _smoothed(branches: list[Value]) -> Value | None:
    """Cross-entropy with label smoothing is a sum of two weighted parts: its ordinary part."""
    first, second = (number_of(one.factor) if one.operation == "Mul" else None for one in branches)
    if first is None or second is None:
        return None
    for one, own, other in ((branches[0], first, second), (branches[1], second, first)):
        given = one.only.tensor("self") if one.only.operation.startswith("NllLoss") else None
        if given is not None and given.dim():
            classes = given.shape[1] if given.dim() > 1 else given.shape[0]
            if math.isclose(own + other * classes, 1.0, rel_tol=1e-4):
                return one.only
    return None
