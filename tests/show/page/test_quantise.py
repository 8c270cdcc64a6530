"""A byte for each cell: what is lost, and what never is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from undertow.show.page.quantise import MARKED, MARKS, Quantised, quantise
from undertow.views.cell_codes import NOT_SAMPLED, decode, encode
from undertow.views.scale import ScaleKind


def restore(packed: Quantised) -> np.ndarray:
    """The numbers again, as `embedded.js` reads them; NaN for every mark but zero."""
    places = packed.low[:, None].astype(np.float64) + packed.step[:, None] * packed.cells.astype(np.float64)
    if packed.kind is ScaleKind.LOGARITHMIC:
        numbers = np.exp(places)
    elif packed.kind is ScaleKind.SIGNED:
        numbers = packed.unit * np.sinh(places)
    else:
        numbers = places
    numbers[packed.cells >= MARKS] = np.nan
    numbers[packed.cells == MARKS] = 0.0
    return numbers


def numbers(random: np.random.Generator, low: float, high: float) -> np.ndarray:
    """Rows of all sizes, each within three decades."""
    return 10 ** (random.uniform(low, high, (40, 1)) + random.uniform(-1.5, 1.5, (40, 300)))


def test_numbers_of_any_size_are_kept_to_two_percent() -> None:
    values = numbers(np.random.default_rng(0), -30, 30).astype(np.float32)
    codes = encode(values)
    assert restore(quantise(codes, ScaleKind.LOGARITHMIC)) == pytest.approx(decode(codes), rel=0.02)


def test_a_row_that_hardly_moves_keeps_its_shape_beside_a_wild_one() -> None:
    steady = np.linspace(1, 1.5, 200)
    wild = 10 ** np.random.default_rng(0).uniform(-9, 9, 200)
    codes = encode(np.stack([steady, wild]).astype(np.float32))
    assert restore(quantise(codes, ScaleKind.LOGARITHMIC))[0] == pytest.approx(steady, rel=0.01)


def test_the_exact_numbers_are_kept_where_they_are_known() -> None:
    """A weight norm grows by a tenth of a percent in a whole run: codes are too coarse to tell."""
    values = np.float32([np.linspace(1, 1.001, 200)])
    codes = encode(values)
    assert len(np.unique(codes)) == 1
    shown = restore(quantise(codes, ScaleKind.LOGARITHMIC, values))
    assert shown == pytest.approx(values, rel=1e-5)
    unknown = restore(quantise(codes, ScaleKind.LOGARITHMIC, np.full_like(values, np.nan)))
    assert unknown == pytest.approx(decode(codes))


def test_cosines_and_shares_are_kept_to_less_than_a_hundredth() -> None:
    codes = encode(np.random.default_rng(0).uniform(-1, 1, (20, 200)).astype(np.float32))
    assert restore(quantise(codes, ScaleKind.LINEAR)) == pytest.approx(decode(codes), abs=0.008)


def test_whole_numbers_stay_whole() -> None:
    codes = encode(np.random.default_rng(0).integers(0, 200, (20, 200)).astype(np.float32))
    assert (restore(quantise(codes, ScaleKind.LINEAR)) == decode(codes)).all()


def test_both_sides_of_zero_keep_their_sign_and_size() -> None:
    random = np.random.default_rng(0)
    values = (random.choice([-1, 1], (20, 200)) * 10 ** random.uniform(-3, 3, (20, 200))).astype(np.float32)
    codes = encode(values)
    for kind in (ScaleKind.SIGNED, ScaleKind.LOGARITHMIC):  # a logarithm of a negative number is refused by itself
        shown = restore(quantise(codes, kind))
        large = np.abs(values) > 1
        assert (np.sign(shown[large]) == np.sign(values[large])).all()
        assert shown[large] == pytest.approx(decode(codes)[large], rel=0.1)


def test_a_row_without_a_number_has_none() -> None:
    packed = quantise(np.full((2, 5), NOT_SAMPLED, np.uint16), ScaleKind.LOGARITHMIC)
    assert np.isnan(restore(packed)).all()
    assert np.isfinite(packed.low).all()
    assert (packed.step > 0).all()


@given(arrays(np.uint16, (3, 8), elements=st.integers(0, 0x7F7F) | st.sampled_from(MARKED)), st.sampled_from(ScaleKind))
@settings(max_examples=60, deadline=None)
def test_marks_are_never_mistaken(codes: np.ndarray, kind: ScaleKind) -> None:
    packed = quantise(codes, kind)
    assert ((packed.cells >= MARKS) == np.isin(codes, MARKED)).all()
    for place, code in enumerate(MARKED):
        assert ((packed.cells == MARKS + place) == (codes == code)).all()
