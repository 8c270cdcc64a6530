"""Does a tensor still look as it was initialised? Size against fan-in, and a test against the usual recipes.

The test asks whether the 64-bin histogram, the largest value and the mean could come from a recipe with the numbers
that this shape gives it; nothing is fitted. For a uniform recipe one step of training is enough to fail it, because
some weight leaves the bounds; a normal one fails when mean, spread or shape change by more than chance allows.
"""

from dataclasses import dataclass
from math import erf, erfc, expm1, log1p, prod, sqrt

import numpy as np
from numpy.typing import NDArray

from undertow.analyze.array_statistics import BINS
from undertow.analyze.weight_distribution import Distribution
from undertow.schema import LayerKind
from undertow.schema.checkpoints import Initialisation, Moments

LEAST_PROBABILITY = 0.01
FEWEST_ELEMENTS = 256
_LEAST_EXPECTED = 8.0
_MANTISSA_BITS = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}


@dataclass(frozen=True, slots=True)
class _Recipe:
    name: str
    bound: float | None  # of a uniform distribution
    std: float

    def below(self, value: float) -> float:
        if self.bound is not None:
            return min(max(0.5 + 0.5 * value / self.bound, 0.0), 1.0)
        return 0.5 * (1.0 + erf(value / self.std / sqrt(2.0)))


def _uniform(name: str, bound: float) -> _Recipe:
    return _Recipe(f"{name}: uniform within ±{bound:.3g}", bound, bound / sqrt(3.0))


def _normal(name: str, std: float) -> _Recipe:
    return _Recipe(f"{name}: normal with std {std:.3g}", None, std)


def initialisation(
    distribution: Distribution, kind: str, shape: tuple[int, ...], dtype: str, owner_fan_in: int | None = None
) -> Initialisation:
    """`owner_fan_in`: of the weight that a bias belongs to."""
    moments = distribution.moments
    fan_in, scale, missing = scale_of(moments, kind, shape)
    if moments.nonfinite_count:
        missing["resembles"] = "the tensor holds non-finite values"
        return Initialisation(fan_in, scale, missing=missing)
    if moments.std == 0:
        constant = None
        if kind == LayerKind.NORM_SCALE and moments.mean == 1.0:
            constant = "ones"
        elif kind in (LayerKind.NORM_SHIFT, LayerKind.BIAS) and moments.mean == 0.0:
            constant = "zeros"
        return Initialisation(fan_in, scale, constant, None if constant is None else 1.0, missing)
    if moments.count < FEWEST_ELEMENTS or dtype not in _MANTISSA_BITS:
        few = f"a distribution is tested from {FEWEST_ELEMENTS} elements on"
        missing["resembles"] = few if dtype in _MANTISSA_BITS else f"{dtype} is too coarse to tell distributions apart"
        return Initialisation(fan_in, scale, missing=missing)
    best: tuple[float, str] | None = None
    for recipe in _recipes(kind, shape, owner_fan_in):
        probability = _probability(distribution, recipe, _MANTISSA_BITS[dtype])
        if probability >= LEAST_PROBABILITY and (best is None or probability > best[0]):
            best = probability, recipe.name
    if best is None:
        return Initialisation(fan_in, scale, missing=missing)
    return Initialisation(fan_in, scale, best[1], best[0], missing)


def scale_of(moments: Moments, kind: str, shape: tuple[int, ...]) -> tuple[int | None, float | None, dict[str, str]]:
    """Fan-in, root mean square × √fan-in, and why they are missing."""
    weight = kind in (LayerKind.WEIGHT, LayerKind.RECURRENT) and len(shape) >= 2
    fan_in = prod(shape[1:]) if weight else None
    if fan_in is None or moments.norm is None:
        reason = "fan-in is known for weights of two dimensions and more, with finite values"
        return fan_in, None, {"scale": reason}
    return fan_in, moments.norm / sqrt(moments.finite_count) * sqrt(fan_in), {}


def _recipes(kind: str, shape: tuple[int, ...], owner_fan_in: int | None) -> list[_Recipe]:
    """The defaults of torch for such a tensor, and the few that most models choose instead."""
    if kind == LayerKind.BIAS:
        return [_uniform("torch.nn.Linear or Conv", 1 / sqrt(owner_fan_in))] if owner_fan_in else []
    if kind == LayerKind.EMBEDDING:
        return [_normal("torch.nn.Embedding", 1.0), _normal("transformers", 0.02)]
    if kind not in (LayerKind.WEIGHT, LayerKind.RECURRENT) or len(shape) < 2 or prod(shape) == 0:
        return []
    fan_in = prod(shape[1:])
    fan_out = prod(shape) // shape[1]
    if kind == LayerKind.RECURRENT:
        gates = [gates for gates in (1, 3, 4) if shape[0] % gates == 0]
        return [_uniform("torch.nn.RNN, GRU or LSTM", 1 / sqrt(shape[0] // one)) for one in gates]
    return [
        _uniform("torch.nn.Linear or Conv", 1 / sqrt(fan_in)),
        _uniform("Xavier", sqrt(6.0 / (fan_in + fan_out))),
        _normal("Xavier", sqrt(2.0 / (fan_in + fan_out))),
        _uniform("Kaiming", sqrt(6.0 / fan_in)),
        _normal("Kaiming", sqrt(2.0 / fan_in)),
        _normal("transformers", 0.02),
    ]


def _probability(distribution: Distribution, recipe: _Recipe, mantissa_bits: int) -> float:
    """That a sample of the recipe would look at least as odd, by the oddest of four measures."""
    moments = distribution.moments
    number, mean, std = moments.count, moments.mean or 0.0, moments.std or 0.0
    tests: list[float] = [_two_sided(mean / recipe.std * sqrt(number))]
    # The variance of the sample variance is (kurtosis + 2) σ⁴ / n; a uniform distribution has kurtosis −1.2.
    spread = sqrt(0.8 if recipe.bound is not None else 2.0)
    tests.append(_two_sided((std**2 / recipe.std**2 - 1.0) / spread * sqrt(number)))
    if recipe.bound is not None:
        rounding = 1 + 2.0**-mantissa_bits
        if distribution.reach > recipe.bound * rounding:
            return 0.0
        tests.append(min(distribution.reach * rounding / recipe.bound, 1.0) ** number)
    tests.append(_shape(distribution, recipe, mantissa_bits))
    least = min(tests)
    return -expm1(len(tests) * log1p(-least)) if least < 1 else 1.0  # the least of several is small by chance


def _shape(distribution: Distribution, recipe: _Recipe, mantissa_bits: int) -> float:
    """Pearson's test on the bins of the histogram, joined where few elements are expected."""
    low, high = distribution.moments.minimum or 0.0, distribution.moments.maximum or 0.0
    edges = [_rounding_edge(edge, mantissa_bits) for edge in np.linspace(low, high, BINS + 1)[1:-1].tolist()]
    rounding = 2.0**-mantissa_bits  # of the ends: what was rounded to them lies up to this much outside
    edges = [low - abs(low) * rounding, *edges, high + abs(high) * rounding]
    below = np.array([recipe.below(edge) for edge in edges])
    share = np.maximum(np.diff(below), 0.0)
    if share.sum() <= 0:
        return 0.0
    expected = share / share.sum() * distribution.histogram.sum()
    seen, wanted = _joined(distribution.histogram, expected)
    if len(seen) < 3:
        return 0.0
    return _chi_square_tail(float(((seen - wanted) ** 2 / wanted).sum()), len(seen) - 1)


def _rounding_edge(edge: float, mantissa_bits: int) -> float:
    """Below which values round to a stored number under `edge`: those lie on a grid that bins cut through."""
    if edge == 0.0 or mantissa_bits > 12:
        return edge
    spacing = 2.0 ** (np.floor(np.log2(abs(edge))) - mantissa_bits)
    return float(np.ceil(edge / spacing) * spacing - spacing / 2)


def _joined(seen: NDArray[np.int64], expected: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    groups: list[tuple[float, float]] = []
    count = size = 0.0
    for one, wanted in zip(seen.tolist(), expected.tolist()):
        count, size = count + one, size + wanted
        if size >= _LEAST_EXPECTED:
            groups.append((count, size))
            count = size = 0.0
    if groups:
        groups[-1] = groups[-1][0] + count, groups[-1][1] + size
    pairs = np.array(groups).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _two_sided(deviations: float) -> float:
    return erfc(abs(deviations) / sqrt(2.0))


def _chi_square_tail(value: float, freedom: int) -> float:
    """Wilson and Hilferty's approximation, right to a few per cent from three degrees of freedom on."""
    part = 2.0 / (9.0 * freedom)
    return 0.5 * erfc(((value / freedom) ** (1 / 3) - (1.0 - part)) / sqrt(2.0 * part))
