"""The measurement of `measure.kernels` for JAX: what one look at a list of arrays leaves behind, traced into the
user's own step.

On the device there is only float32, so sums are taken of values divided by a power of two near the largest one,
which is exact; the host multiplies them again in float64. Nothing leaves the range between 1e-30 and 1e30.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from undertow.measure.partials import EXPONENT_BUCKETS, SKETCH_BUCKETS, Moment, Partials, offsets_of
from undertow.measure.signs import FIRST_FACTOR, SECOND_FACTOR, WORD_OFFSET

# By name: a type checker without the package would take it for a mistake.
jax: Any = import_module("jax")
jnp: Any = import_module("jax.numpy")

_BIAS = 127
_COUNTS = (Moment.NAN, Moment.POSITIVE_INFINITY, Moment.NEGATIVE_INFINITY, Moment.ZERO)
# What the device sums, and the power of the unit that each sum is multiplied by.
_SUMS = (
    (Moment.MINIMUM, 1),
    (Moment.MAXIMUM, 1),
    (Moment.PIVOT, 1),
    (Moment.SUM1, 1),
    (Moment.SUM2, 2),
    (Moment.SUM3, 3),
    (Moment.SUM4, 4),
    (Moment.SUM_ABSOLUTE, 1),
    (Moment.SUM_SQUARE, 2),
)


def is_measurable(array: Any) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.floating))


def measurable(arrays: Sequence[Any]) -> list[Any]:
    return [array for array in arrays if is_measurable(array)]


class Traced(NamedTuple):
    """Of n arrays, as they leave the device."""

    units: Any  # n: the power of two, as its exponent
    counts: Any  # n × len(_COUNTS)
    sums: Any  # n × len(_SUMS), in units
    exponents: Any  # n × 256
    sketches: Any  # end to end, in units


class Moves(NamedTuple):
    """How n arrays moved in a step."""

    norms_before: Any
    norms: Any  # of their changes
    sketches: Any  # of their changes, end to end


def trace(arrays: Sequence[Any]) -> Traced:
    """Inside of a compiled step."""
    units, counts, sums, exponents, sketches = zip(*map(_one, arrays))
    return Traced(jnp.stack(units), jnp.stack(counts), jnp.stack(sums), jnp.stack(exponents), jnp.concatenate(sketches))


def trace_norms(arrays: Sequence[Any]) -> Any:
    """Inside of a compiled step; NaN where an element is not finite."""
    return jnp.stack([jnp.where(jnp.isfinite(array).all(), _norm(array), jnp.nan) for array in arrays])


def trace_sketches(arrays: Sequence[Any]) -> Any:
    """Inside of a compiled step: all sketches end to end."""
    return jnp.concatenate([_sketch(jnp.ravel(array).astype(jnp.float32)) for array in arrays])


def partials(traced: Traced, sizes: NDArray[np.int64]) -> Partials:
    """On the host."""
    moments = np.zeros((len(sizes), len(Moment)))
    moments[:, Moment.COUNT] = sizes
    moments[:, list(_COUNTS)] = traced.counts
    units = np.exp2(np.asarray(traced.units, np.float64))
    for place, (column, power) in enumerate(_SUMS):
        moments[:, column] = np.asarray(traced.sums[:, place], np.float64) * units**power
    offsets = offsets_of(sizes)
    sketches = np.asarray(traced.sketches, np.float64) * np.repeat(units, np.diff(offsets))
    return Partials(moments, np.asarray(traced.exponents, np.int64), sketches, offsets)


def _scaled(array: Any) -> tuple[Any, Any, Any, Any]:
    """Values, their exponents, the power of two near the largest, and the finite values divided by that."""
    values = jnp.ravel(array).astype(jnp.float32)
    exponents = (jax.lax.bitcast_convert_type(values, jnp.int32) >> 23) & (EXPONENT_BUCKETS - 1)
    finite = jnp.isfinite(values)
    largest = jnp.max(jnp.where(finite, exponents, 0), initial=0)
    unit = jnp.where(largest > 0, largest - _BIAS, 0)
    return values, exponents, unit, _times_power(jnp.where(finite, values, 0), -unit)


def _times_power(values: Any, power: Any) -> Any:
    """By a power of two, exactly; in two factors, because one may be beyond float32. `ldexp` takes far longer."""
    half = power // 2
    for part in (half, power - half):
        values = values * jax.lax.bitcast_convert_type((part + _BIAS) << 23, jnp.float32)
    return values


def _norm(array: Any) -> Any:
    _, _, unit, scaled = _scaled(array)
    return _times_power(jnp.sqrt((scaled * scaled).sum()), unit)


def _one(array: Any) -> tuple[Any, ...]:
    values, exponents, unit, scaled = _scaled(array)
    finite = jnp.isfinite(values)
    number = jnp.maximum(finite.sum(), 1)
    pivot = scaled.sum() / number
    deviation = jnp.where(finite, scaled - pivot, 0)
    square = deviation * deviation
    some = finite.any()
    sums = (
        jnp.where(some, jnp.where(finite, scaled, jnp.inf).min(initial=jnp.inf), jnp.nan),
        jnp.where(some, jnp.where(finite, scaled, -jnp.inf).max(initial=-jnp.inf), jnp.nan),
        pivot,
        deviation.sum(),
        square.sum(),
        (square * deviation).sum(),
        (square * square).sum(),
        jnp.abs(scaled).sum(),
        (scaled * scaled).sum(),
    )
    counts = (jnp.isnan(values), values == jnp.inf, values == -jnp.inf, values == 0)
    histogram = jnp.zeros(EXPONENT_BUCKETS, jnp.int32).at[exponents].add(1)
    return (
        unit,
        jnp.stack([count.sum(dtype=jnp.int32) for count in counts]),
        jnp.stack(sums).astype(jnp.float32),
        histogram,
        _sketch(scaled),
    )


def _sketch(values: Any) -> Any:
    """As `measure.signs` has it: element i with its sign into bucket i mod 1024."""
    width = min(SKETCH_BUCKETS, values.size)
    if not width:
        return values
    place = jnp.arange(values.size, dtype=jnp.uint32)
    word = place // 32 + np.uint32(WORD_OFFSET)
    word = (word ^ (word >> 16)) * np.uint32(FIRST_FACTOR)
    word = (word ^ (word >> 13)) * np.uint32(SECOND_FACTOR)
    word = word ^ (word >> 16)
    signed = jnp.where((word >> (place % 32)) & 1, -values, values)
    return jnp.pad(signed, (0, -values.size % width)).reshape(-1, width).sum(0)
