"""The products of sketches in C are those in numpy, whatever is missing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from undertow.measure import sketches
from undertow.measure.sketches import Direction, directions

pytestmark = pytest.mark.skipif(sketches._native_directions is None, reason="built without a C compiler")


@given(st.lists(st.integers(0, 40), min_size=0, max_size=5), st.lists(st.booleans(), min_size=6, max_size=6))
def test_both_ways_agree(lengths, given_ones):
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    random = np.random.default_rng(0)
    rows = [random.normal(size=offsets[-1]) if here else None for here in given_ones]
    results = []
    for native in (True, False):
        out, change = np.full((len(Direction), len(lengths)), np.nan), np.zeros(offsets[-1])
        with pytest.MonkeyPatch.context() as patch:
            if not native:
                patch.setattr(sketches, "_native_directions", None)
            directions(offsets, out, change, *rows)
        results.append((out, change))
    (got, got_change), (expected, expected_change) = results
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(got_change, expected_change)


def test_arrays_of_the_wrong_length_are_refused():
    with pytest.raises(ValueError, match="wrong length"):
        directions(np.array([0, 4]), np.empty((8, 1)), np.empty(4), np.empty(3), None, None, None, None, None)
