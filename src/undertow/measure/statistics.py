"""The statistics of many tensors from their partial values, in the order of `schema.quantities.STATISTICS`.

Where a statistic has no meaning it is NaN: everything but the counts for an empty tensor, moments and quantiles
for a tensor without a finite element, quantiles and shares when no exponents were measured. A constant tensor
has standard deviation, skewness and kurtosis 0.

Quantiles and shares come from the histogram of exponents, so they are right to a power of two: quantiles are
interpolated on a log scale inside an exponent; a share counts whole exponents, which leaves out the last half
binade below a format's end (fp8: 464 to 512). Values that the histogram cannot tell from zero or from each
other (float32 denormals) count as flushed by bf16, as they are on devices that flush them.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from undertow.measure.partials import LAST_FINITE_EXPONENT, Moment, Partials
from undertow.schema.quantities import STATISTIC_NAMES

_in_c: Callable[..., None] | None
try:
    from undertow.measure.kernels import _native  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]

    _in_c = _native.statistics
except ImportError:  # built without a C compiler
    _in_c = None

Floats = NDArray[np.float64]

_BIAS = 127
_ROW = {name: row for row, name in enumerate(STATISTIC_NAMES)}
_QUANTILES = ((_ROW["abs_p05"], 0.05), (_ROW["abs_p50"], 0.50), (_ROW["abs_p95"], 0.95))
# Format: values below 2^first round to zero, values from 2^second on do not fit.
_FORMATS = (("fp16", -25, 16), ("bf16", -126, 127), ("fp8", -10, 9))
_LARGEST_BRAIN_FLOAT = float.fromhex("0x1.fep127")
# Below this variance float64 cannot hold the fourth power of the deviations.
_SMALLEST_VARIANCE = 1e-140


def statistics(partials: Partials, out: Floats | None = None) -> Floats:
    """One row per statistic, one column per tensor; written to `out` when it is given."""
    if out is None:
        out = np.empty((len(STATISTIC_NAMES), len(partials)))
    if _in_c is None:
        out[...] = in_numpy(partials)
        return out
    moments, exponents = partials.moments, partials.exponents
    if not moments.flags.c_contiguous:
        moments = np.ascontiguousarray(moments)
    if exponents is not None and not exponents.flags.c_contiguous:
        exponents = np.ascontiguousarray(exponents)
    _in_c(moments, exponents, out)
    return out


def in_numpy(partials: Partials) -> Floats:
    """The same without the C kernel; slower for many small tensors."""
    moments = partials.moments
    out = np.full((len(STATISTIC_NAMES), len(partials)), np.nan)
    count = moments[:, Moment.COUNT]
    with np.errstate(all="ignore"):
        _norms(moments, count, out)
        _shape(partials, out)
        out[_ROW["zero_fraction"]] = moments[:, Moment.ZERO] / count
        if partials.exponents is not None:
            _from_exponents(partials, partials.exponents, out)
    return out


def _norms(moments: Floats, count: Floats, out: Floats) -> None:
    nan = moments[:, Moment.NAN]
    infinite = moments[:, Moment.POSITIVE_INFINITY] + moments[:, Moment.NEGATIVE_INFINITY]
    norm = np.sqrt(moments[:, Moment.SUM_SQUARE])
    norm[infinite > 0] = np.inf
    norm[(nan > 0) | (count == 0)] = np.nan
    out[_ROW["norm"]] = norm
    out[_ROW["rms"]] = norm / np.sqrt(count)
    out[_ROW["nonfinite_count"]] = nan + infinite


def _shape(partials: Partials, out: Floats) -> None:
    moments, central = partials.moments, partials.central()
    low, high = moments[:, Moment.MINIMUM], moments[:, Moment.MAXIMUM]
    number = np.where(central.count > 0, central.count, np.nan)
    variance = np.where(low == high, 0.0, central.second / number)
    constant = variance == 0
    usable = np.where(variance > _SMALLEST_VARIANCE, variance, np.nan)
    out[_ROW["mean"]] = np.where(central.count > 0, central.mean, np.nan)
    out[_ROW["mean_abs"]] = moments[:, Moment.SUM_ABSOLUTE] / number
    out[_ROW["std"]] = np.sqrt(variance)
    out[_ROW["min"]] = low
    out[_ROW["max"]] = high
    out[_ROW["max_abs"]] = np.maximum(np.abs(low), np.abs(high))
    out[_ROW["skewness"]] = np.where(constant, 0.0, central.third / number / usable / np.sqrt(usable))
    out[_ROW["kurtosis"]] = np.where(constant, 0.0, central.fourth / number / usable / usable - 3.0)


def _from_exponents(partials: Partials, exponents: NDArray[np.int64], out: Floats) -> None:
    used = np.bitwise_or.reduce(exponents[:, : LAST_FINITE_EXPONENT + 1], axis=0).nonzero()[0]
    first, last = (int(used[0]), int(used[-1])) if len(used) else (0, 0)
    # Only the exponents that occur; row k of `below` counts elements with an exponent less than first + k.
    below = np.zeros((last - first + 2, len(partials)))
    np.cumsum(exponents.T[first : last + 1], axis=0, out=below[1:])
    _quantiles(below, first, out)
    count, zeros = partials.moments[:, Moment.COUNT], partials.moments[:, Moment.ZERO]
    finite = below[-1]
    nonzero = np.where(count > 0, np.maximum(finite - zeros, 1.0), np.nan)

    def below_power(power: int) -> Floats:
        return below[min(max(power + _BIAS - first, 0), len(below) - 1)]

    for name, smallest, limit in _FORMATS:
        # Zeros lie in exponent 0 and are not flushed: they were zero before.
        flushed = below_power(smallest) - zeros if first == 0 else below_power(smallest)
        out[_ROW[f"{name}_underflow"]] = flushed / nonzero
        over = finite - below_power(limit)
        if name == "bf16":  # shares its last exponent with values that fit
            over = np.where(out[_ROW["max_abs"]] > _LARGEST_BRAIN_FLOAT, over, 0.0)
        out[_ROW[f"{name}_overflow"]] = over / count


def _quantiles(below: Floats, first: int, out: Floats) -> None:
    finite = below[-1]
    columns = np.arange(below.shape[1])
    for row, share in _QUANTILES:
        target = share * finite
        bucket = np.add.reduce(below[1:-1] < target, axis=0, dtype=np.int64)
        before = below[bucket, columns]
        inside = (target - before) / (below[bucket + 1, columns] - before)
        value = np.exp2(bucket + (first - _BIAS) + inside)
        value[bucket + first == 0] = 0.0
        value[finite == 0] = np.nan
        out[row] = np.minimum(value, out[_ROW["max_abs"]])
