"""Values that break sums: huge, tiny, offset, outlying, denormal, infinite, missing."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.battery.agreement import TOLERANCE, TOLERANCES, assert_agrees

from undertow.measure.kernels.interface import Kernel
from undertow.measure.partials import Moment

SPECIAL = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-42, -1e-45, 3.4e38]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_special_values_in_every_position(kernel: Kernel, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    tensors: list[torch.Tensor] = []
    for size in (1, 37):
        for position in range(size):
            for special in SPECIAL:
                tensor = torch.randn(size, generator=generator)
                tensor[position] = special
                tensors.append(tensor.to(dtype))
    assert_agrees(kernel, tensors)


@pytest.mark.parametrize("special", SPECIAL)
def test_special_values_in_a_long_tensor(kernel: Kernel, special: float) -> None:
    generator = torch.Generator().manual_seed(2)
    tensors: list[torch.Tensor] = []
    for position in (0, 1, 15, 16, 1023, 1024, 4095, 4096, 8199, 8200):
        tensor = torch.randn(8201, generator=generator)
        tensor[position] = special
        tensors.append(tensor)
    assert_agrees(kernel, [*tensors, torch.full((5000,), special)])


def test_infinities_of_both_signs_in_one_bucket(kernel: Kernel) -> None:
    tensor = torch.ones(3 * 1024)
    tensor[5], tensor[5 + 1024] = torch.inf, -torch.inf
    sketches = assert_agrees(kernel, [tensor]).sketches
    assert sketches is not None
    assert np.isfinite(sketches).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_magnitudes(kernel: Kernel, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    shape = torch.randn(5000, generator=generator, dtype=torch.float64)
    assert_agrees(kernel, [(shape * 10.0**power).to(dtype) for power in range(-44, 38, 2)])


def test_every_finite_half(kernel: Kernel) -> None:
    bits = torch.arange(2**16, dtype=torch.int32).to(torch.uint16)
    assert_agrees(kernel, [bits.view(torch.float16), bits.view(torch.bfloat16)])


def test_offsets_far_larger_than_the_spread(kernel: Kernel) -> None:
    generator = torch.Generator().manual_seed(4)
    noise = torch.randn(9000, generator=generator, dtype=torch.float64)
    tensors = [(1.0 + spread * noise).float() for spread in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)]
    tensors += [(-1e20 * (1.0 + 1e-4 * noise)).float(), (1e-25 * (1.0 + 1e-4 * noise)).float()]
    tensors += [1e6 + noise, 1e9 + noise]
    assert_agrees(kernel, tensors)


def test_awkward_distributions(kernel: Kernel) -> None:
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(9000, generator=generator)
    outlier, pair = noise.clone(), noise.clone()
    outlier[4321] = 1e20
    pair[17], pair[7000] = 1e12, -1e12
    assert_agrees(
        kernel,
        [
            outlier, pair, noise.sort().values, noise.exp(), noise.relu(), noise.sign(), 1e-20 * noise.pow(9),
            torch.cat([torch.zeros(5000), 1 + 1e-4 * noise]), torch.cat([noise, 1e8 + noise]), torch.exp2(20 * noise),
            torch.linspace(-100, 100, 8191).exp2(), torch.tensor([1.0, 1.0 + 2**-23]).repeat(2050),
        ],
    )  # fmt: skip


def test_constants_have_no_spread(kernel: Kernel) -> None:
    for value in (0.1, -3.3e-30, 7e29, 0.0):
        moments = kernel.measure([torch.full((5000,), value)]).moments[0]
        assert moments[Moment.MINIMUM] == moments[Moment.MAXIMUM] == np.float32(value)
        assert moments[Moment.SUM2] <= 1e-25 * moments[Moment.SUM_SQUARE]


def test_float64_beyond_the_powers_that_float64_holds(kernel: Kernel) -> None:
    """Never a wrong number: what does not fit is infinite or NaN, and the rest is right."""
    torch.manual_seed(6)
    for scale in (1e90, 1e200, 1e300):
        tensor = torch.randn(5000, dtype=torch.float64) * scale
        moments = kernel.measure([tensor]).moments[0]
        assert moments[Moment.MINIMUM] == tensor.min().item()
        assert moments[Moment.COUNT] == 5000
        assert moments[Moment.NAN] + moments[Moment.POSITIVE_INFINITY] + moments[Moment.NEGATIVE_INFINITY] == 0
        assert not np.isfinite(moments[Moment.SUM4])
        assert moments[Moment.SUM_ABSOLUTE] == pytest.approx(tensor.abs().sum().item())
        if scale == 1e90:
            assert moments[Moment.SUM_SQUARE] == pytest.approx((tensor / scale).square().sum().item() * scale**2)
        else:
            assert moments[Moment.SUM_SQUARE] == np.inf


def test_denormals_survive_flush_to_zero(kernel: Kernel, reference: Kernel) -> None:
    tensor = torch.randn(6000) * 1e-40
    half = (torch.randn(6000) * 1e-6).half()
    expected = reference.measure([tensor, half])
    try:
        if not torch.set_flush_denormal(True):
            pytest.skip("this processor cannot flush denormals")
        got = kernel.measure([tensor, half])
        assert (tensor * 1.0).count_nonzero() == 0, "the user's setting was changed"
    finally:
        torch.set_flush_denormal(False)
    np.testing.assert_array_equal(got.exponents, expected.exponents)
    np.testing.assert_array_equal(got.sketches, expected.sketches)
    np.testing.assert_array_equal(got.moments[:, : Moment.PIVOT], expected.moments[:, : Moment.PIVOT])
    sums = [Moment.SUM2, Moment.SUM4, Moment.SUM_ABSOLUTE, Moment.SUM_SQUARE]
    tolerance = 0.1 * TOLERANCES.get(kernel.name, TOLERANCE)
    np.testing.assert_allclose(got.moments[:, sums], expected.moments[:, sums], rtol=tolerance)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    bits=hnp.arrays(np.uint32, st.integers(0, 40), elements=st.integers(0, 2**32 - 1)),
    repeats=st.sampled_from([1, 1, 2, 30, 110]),
    start=st.integers(0, 3),
)
def test_any_bits_at_all(kernel: Kernel, bits: np.ndarray, repeats: int, start: int) -> None:
    values = np.tile(bits, repeats).view(np.float32)[start:]
    assert_agrees(kernel, [torch.from_numpy(values.copy())])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=hnp.arrays(np.float32, st.integers(0, 60), elements=st.floats(-(2.0**100), 2.0**100, width=32)),
    offset=st.sampled_from([0.0, 1.0, -1e3, 1e25]),
    repeats=st.sampled_from([1, 40, 100]),
)
def test_any_ordinary_numbers(kernel: Kernel, values: np.ndarray, offset: float, repeats: int) -> None:
    assert_agrees(kernel, [torch.from_numpy(np.tile(values, repeats) + np.float32(offset))])
