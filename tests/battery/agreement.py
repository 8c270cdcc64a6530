"""What it means for a kernel to agree with the reference."""

from collections.abc import Sequence

import numpy as np
import torch

from undertow.measure.kernels.interface import Kernel, Want
from undertow.measure.kernels.reference import ReferenceKernel
from undertow.measure.partials import Moment, Partials
from undertow.measure.statistics import statistics
from undertow.schema.quantities import STATISTIC_NAMES

EXACT = [
    Moment.COUNT, Moment.NAN, Moment.POSITIVE_INFINITY, Moment.NEGATIVE_INFINITY, Moment.ZERO, Moment.MINIMUM,
    Moment.MAXIMUM,
]  # fmt: skip
# The bar is 1e-5; float64 sums do far better, so a kernel that only just passes has lost something.
TOLERANCE = 1e-8
# Except where moments are sums of float32 by design, many short ones: a GPU's float64 may be 64 times slower.
TOLERANCES = {"triton": 1e-6}


def assert_agrees(kernel: Kernel, tensors: Sequence[torch.Tensor], want: Want = Want.ALL) -> Partials:
    expected, got = ReferenceKernel().measure(tensors, want), kernel.measure(tensors, want)
    np.testing.assert_array_equal(got.offsets, expected.offsets)
    if want & Want.MOMENTS:
        np.testing.assert_array_equal(got.moments[:, EXACT], expected.moments[:, EXACT])
        _assert_same_statistics(got, expected, TOLERANCES.get(kernel.name, TOLERANCE))
    if want & Want.EXPONENTS:
        np.testing.assert_array_equal(got.exponents, expected.exponents)
    else:
        assert got.exponents is None
    if want & Want.SKETCH:
        assert got.sketches is not None
        assert expected.sketches is not None
        for i, tensor in enumerate(tensors):
            stretch = slice(expected.offsets[i], expected.offsets[i + 1])
            values = tensor.detach().to_dense().double() if tensor.layout is not torch.strided else tensor.detach()
            values = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values.double()
            scale = values[torch.isfinite(values)].abs().sum().item()
            np.testing.assert_allclose(got.sketches[stretch], expected.sketches[stretch], rtol=0, atol=1e-14 * scale)
    else:
        assert got.sketches is None
    return got


def _assert_same_statistics(got: Partials, expected: Partials, tolerance: float) -> None:
    ours, theirs = (dict(zip(STATISTIC_NAMES, statistics(p))) for p in (got, expected))
    # Quantities that cancel are compared on the scale of what cancels.
    count = np.maximum(expected.finite(), 1.0)
    with np.errstate(all="ignore"):
        deviations = theirs["std"] * np.sqrt(count)
    for name in ("norm", "rms", "mean_abs", "std", "kurtosis", "abs_p05", "abs_p50", "abs_p95"):
        offset = 3.0 if name == "kurtosis" else 0.0
        np.testing.assert_allclose(ours[name] + offset, theirs[name] + offset, rtol=tolerance, err_msg=name)
    _assert_close("mean", ours["mean"], theirs["mean"], theirs["mean_abs"], tolerance)
    whole = np.where(deviations > 0, np.sqrt(count), 0.0)
    _assert_close("skewness", ours["skewness"], theirs["skewness"], whole, tolerance)


def _assert_close(name: str, ours: np.ndarray, theirs: np.ndarray, scale: np.ndarray, tolerance: float) -> None:
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs), err_msg=name)
    error = np.abs(ours - theirs)[~np.isnan(theirs)]
    assert np.all(error <= tolerance * scale[~np.isnan(theirs)]), (name, ours, theirs)
