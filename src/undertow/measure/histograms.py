"""How the absolute values of a tensor are spread, in few enough numbers to be stored.

A histogram keeps the powers of two from the largest value down: the exponent of its lowest bucket, then the share of
the non-zero finite elements in each. What lies farther down counts in the lowest bucket. Elements that are zero, and
denormals, which one exponent stands for, are left out: how many are zero is a statistic of its own.
"""

import numpy as np
from numpy.typing import NDArray

from undertow.measure.partials import LAST_FINITE_EXPONENT
from undertow.schema.quantities import STORED_HISTOGRAM_WIDTH

_BIAS = 127
_BUCKETS = STORED_HISTOGRAM_WIDTH - 1


def stored_histograms(exponents: NDArray[np.int64]) -> NDArray[np.float32]:
    """(tensors × 256 counts) → (tensors × width); NaN for a tensor without a finite element that is not zero."""
    counts = exponents[:, 1 : LAST_FINITE_EXPONENT + 1]
    total = counts.sum(axis=1)
    top = counts.shape[1] - 1 - np.argmax(counts[:, ::-1] > 0, axis=1)
    first = np.maximum(top - (_BUCKETS - 1), 0)
    # Bucket k of a tensor is its count number first + k; the first of them takes all that lie below, too.
    places = first[:, None] + np.arange(_BUCKETS)
    kept = np.take_along_axis(counts, np.minimum(places, counts.shape[1] - 1), axis=1)
    kept[places > top[:, None]] = 0
    kept[:, 0] += total - kept.sum(axis=1)
    out = np.full((len(counts), STORED_HISTOGRAM_WIDTH), np.nan, np.float32)
    some = total > 0
    out[some, 0] = first[some] + 1 - _BIAS
    out[some, 1:] = kept[some] / total[some, None]
    return out
