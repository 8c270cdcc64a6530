"""Palettes, scales and lines that all media share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.views.test_tiles import LAYERS, written

from undertow.run import Run
from undertow.schema import Layer
from undertow.schema.seeds.flow_records import ColorScheme
from undertow.views.line_points import line_of_scalar
from undertow.views.palette import palette_of
from undertow.views.run_divergence import divergence
from undertow.views.scale import ScaleKind, scale_of, usual_of
from undertow.views.tiles import in_reading_order

SHADES = np.linspace(0, 1, 256, dtype=np.float32)


def lightness(colours: NDArray[np.uint8]) -> NDArray[np.float64]:
    """CIE L* of sRGB colours."""
    channels = colours.astype(np.float64) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    luminance = linear @ np.array([0.2126, 0.7152, 0.0722])
    return np.where(luminance > 0.008856, 116 * np.cbrt(luminance) - 16, 903.3 * luminance)


@pytest.mark.parametrize("scheme", list(ColorScheme))
def test_more_is_lighter_in_every_palette(scheme: ColorScheme) -> None:
    shades = lightness(palette_of(scheme).sequential(SHADES))
    assert (np.diff(shades) > -0.6).all()  # colours are whole numbers: neighbours may be equal, or off by rounding
    assert shades[-1] - shades[0] > 70
    halves = shades[128] - shades[0], shades[255] - shades[128]
    assert min(halves) > 25  # neither half is flat


def test_high_contrast_has_the_widest_range() -> None:
    ranges = {scheme: np.ptp(lightness(palette_of(scheme).sequential(SHADES))) for scheme in ColorScheme}
    assert max(ranges, key=lambda scheme: ranges[scheme]) is ColorScheme.HIGH_CONTRAST


def test_both_sides_of_a_diverging_palette_darken_alike() -> None:
    shades = lightness(palette_of().diverging(SHADES))
    assert shades.argmax() in range(120, 136)
    assert abs(shades[0] - shades[-1]) < 12
    red, _, blue = palette_of().diverging(SHADES)[[10, 245]].astype(int).T
    assert blue[0] > red[0]
    assert red[1] > blue[1]


def test_marks_are_told_from_each_other() -> None:
    marks = [mark.colour for mark in palette_of().marks.values()]
    apart = [np.abs(np.subtract(one, other)).sum() for i, one in enumerate(marks) for other in marks[:i]]
    assert min(apart) > 60


def test_the_scale_is_whole_decades_and_forgives_an_odd_cell(tmp_path: Path) -> None:
    norms = (10.0 ** np.random.default_rng(0).uniform(-4.5, -1.5, (2000, LAYERS))).astype(np.float32)
    norms[700, 0] = 1e20
    reader = written(tmp_path / "run", norms, np.arange(2000))
    scale = scale_of(reader, "gradient_norm")
    assert (scale.kind, scale.low, scale.high) == (ScaleKind.LOGARITHMIC, pytest.approx(1e-5), pytest.approx(0.1))
    assert scale_of(reader, "gradient_cosine").kind is ScaleKind.LINEAR
    assert scale_of(reader, "gradient_zero_fraction").high == 1.0


def test_a_scale_of_nothing_is_still_one(tmp_path: Path) -> None:
    reader = written(tmp_path / "run", np.full((3, LAYERS), np.nan, np.float32), np.arange(3))
    scale = scale_of(reader, "gradient_norm")
    assert 0 < scale.low < scale.high


def test_signed_numbers_get_two_sides(tmp_path: Path) -> None:
    means = np.random.default_rng(0).normal(size=(50, LAYERS)).astype(np.float32)
    reader = written(tmp_path / "run", np.ones_like(means), np.arange(50), gradient_mean=means)
    scale = scale_of(reader, "gradient_mean")
    assert scale.kind is ScaleKind.SIGNED
    assert scale.diverging


def test_a_line_keeps_every_spike_and_tells_nan_from_silence() -> None:
    values = np.ones(1000)
    values[123] = 50.0
    values[600:] = np.nan  # the loss became NaN and stayed so
    line = line_of_scalar(np.arange(1000), values, 10)
    assert line.maximum[1] == 50
    assert line.minimum[1] == 1
    assert line.nonfinite.tolist() == [False] * 6 + [True] * 4
    rare = np.full(1000, np.nan)
    rare[::100] = 2.0  # a validation loss, now and then
    assert not line_of_scalar(np.arange(1000), rare, 10).nonfinite.any()
    assert line_of_scalar(np.arange(3), np.full(3, np.nan), 10).nonfinite.all()
    assert len(line_of_scalar(np.arange(0), np.empty(0), 10).steps) == 0


def test_layers_are_read_as_executed_unless_some_never_were() -> None:
    executed = [Layer("late", id=0, order=5), Layer("early", id=1, order=1)]
    cut = Layer("cut off", id=2)
    assert [layer.path for layer in in_reading_order(executed)] == ["early", "late"]
    assert in_reading_order([*executed, cut]) == [*executed, cut]


def test_the_usual_number_of_a_layer_is_its_median(tmp_path: Path) -> None:
    norms = np.full((300, LAYERS), np.nan, np.float32)
    norms[:, 0] = 3.0
    norms[250:, 0] = 1e6  # an explosion at the end does not move it
    norms[:200, 1] = np.inf
    usual = usual_of(written(tmp_path / "run", norms, np.arange(300)), "gradient_norm")
    assert usual[0] == 3.0
    assert np.isnan(usual[1:]).all()


def test_runs_part_where_the_first_gradient_differs(tmp_path: Path) -> None:
    norms = np.random.default_rng(0).uniform(1, 2, (700, LAYERS)).astype(np.float32)
    norms[3, 1] = np.nan
    other = norms.copy()
    other[600:, 2:] *= 1.01
    other[5] *= 1 + 1e-7  # rounding
    written(tmp_path / "one", norms, np.arange(700))
    written(tmp_path / "two", other[::2], np.arange(0, 700, 2))
    at = np.arange(700)[:, None] == 90
    bad = np.where(at, np.float32(4), np.zeros_like(norms))
    written(tmp_path / "nan", np.where(at, np.float32(np.nan), norms), np.arange(700), gradient_nonfinite_count=bad)
    written(tmp_path / "thinned", np.where(at, np.float32(np.nan), norms), np.arange(700))
    one, two = Run(tmp_path / "one"), Run(tmp_path / "two")
    found = divergence(one, two)
    assert (found.step, found.common_steps, found.common_layers) == (600, 350, LAYERS)
    assert found.layers == ("blocks.2.weight", "blocks.3.weight", "blocks.4.weight")
    assert divergence(one, one).step is None
    assert divergence(one, Run(tmp_path / "nan")).step == 90
    assert divergence(one, Run(tmp_path / "thinned")).step is None  # what was not measured is no difference


def test_runs_with_nothing_in_common_say_so(tmp_path: Path) -> None:
    written(tmp_path / "one", np.ones((3, LAYERS), np.float32), np.arange(3))
    written(tmp_path / "late", np.ones((3, LAYERS), np.float32), np.arange(10, 13))
    assert divergence(Run(tmp_path / "one"), Run(tmp_path / "late")).reason == "they have no step in common"
