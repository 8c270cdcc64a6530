"""The statistics in C are those in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from undertow.measure import statistics as module
from undertow.measure.kernels.reference import ReferenceKernel
from undertow.schema.quantities import STATISTIC_NAMES

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(module._in_c is None, reason="built without a C compiler")

ELEMENTS = st.one_of(
    st.floats(width=32),
    st.floats(-1, 1, width=32),
    st.sampled_from([0.0, -0.0, 1e-40, 1e-30, 1e30, 464.0, 65504.0, float("inf"), float("-inf"), float("nan")]),
)


@given(st.lists(hnp.arrays(np.float32, st.integers(0, 40), elements=ELEMENTS), min_size=1, max_size=4), st.booleans())
def test_both_ways_agree(arrays, with_exponents):
    partials = ReferenceKernel().measure([torch.from_numpy(array) for array in arrays])
    if not with_exponents:
        partials = type(partials)(partials.moments, None, partials.sketches, partials.offsets)
    got, expected = module.statistics(partials), module.in_numpy(partials)
    # Higher moments of nearly constant tensors are differences of nearly equal numbers.
    spread = np.nan_to_num(expected[STATISTIC_NAMES.index("std")]) > 1e-3 * np.abs(
        np.nan_to_num(expected[STATISTIC_NAMES.index("mean")])
    )
    for row, name in enumerate(STATISTIC_NAMES):
        chosen = spread if name in ("std", "skewness", "kurtosis") else np.ones(len(arrays), bool)
        np.testing.assert_allclose(got[row][chosen], expected[row][chosen], rtol=1e-9, atol=1e-12, err_msg=name)
