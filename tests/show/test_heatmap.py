"""The heatmap: what each cell says, and how it is painted."""

import numpy as np
from rich.console import Console

from undertow.schema.layers import Layer, LayerKind
from undertow.show.terminal.heatmap import paint, shorten
from undertow.show.terminal.sparkline import sparkline
from undertow.views.heatmap import Cell, Heatmap, gradient_heatmap, rows_to_show
from undertow.views.palette import NONFINITE, sequential


def _heatmap(columns: int = 4) -> Heatmap:
    """Four steps of five layers: growing, cut off, NaN from step 2, exactly zero, frozen."""
    nan = np.nan
    norms = np.array(
        [
            [1e-4, nan, 1.0, 0.0, nan],
            [1e-3, nan, 1.0, 0.0, nan],
            [1e-2, nan, nan, 0.0, nan],
            [1e-1, nan, nan, 0.0, nan],
        ],
        np.float32,
    )
    nonfinite = np.zeros_like(norms)
    nonfinite[2:, 2] = 7
    states = np.zeros_like(norms)
    states[:, 1] = 1
    states[:, 4] = 2
    return gradient_heatmap(["grow", "cut", "nan", "zero", "frozen"], np.arange(4), norms, nonfinite, states, columns)


def test_every_state_is_told_apart() -> None:
    cells = _heatmap().cells
    assert cells[0].tolist() == [Cell.VALUE] * 4
    assert cells[1].tolist() == [Cell.NO_GRADIENT] * 4
    assert cells[2].tolist() == [Cell.VALUE, Cell.VALUE, Cell.NONFINITE, Cell.NONFINITE]
    assert cells[3].tolist() == [Cell.ZERO] * 4
    assert cells[4].tolist() == [Cell.FROZEN] * 4


def test_levels_are_logarithmic_over_the_whole_run() -> None:
    levels = _heatmap().levels
    np.testing.assert_allclose(levels[0], [0.0, 0.25, 0.5, 0.75], atol=1e-5)
    assert levels[2, 0] == 1.0
    assert np.isnan(levels[1]).all()


def test_a_step_that_was_not_sampled_is_neither_zero_nor_nan() -> None:
    norms = np.array([[1.0], [np.nan]], np.float32)
    empty = np.array([[0.0], [np.nan]], np.float32)
    cells = gradient_heatmap(["a"], np.arange(2), norms, empty, empty, 2).cells
    assert cells[0].tolist() == [Cell.VALUE, Cell.NOT_SAMPLED]


def test_the_worst_news_of_a_cell_wins_when_steps_share_it() -> None:
    folded = _heatmap(columns=1)
    assert folded.cells[:, 0].tolist() == [Cell.VALUE, Cell.NO_GRADIENT, Cell.NONFINITE, Cell.ZERO, Cell.FROZEN]
    assert abs(float(folded.levels[0, 0]) - 0.75) < 1e-5  # the largest norm in the cell


def test_no_steps_make_an_empty_picture() -> None:
    nothing = np.empty((0, 2), np.float32)
    heatmap = gradient_heatmap(["a", "b"], np.empty(0, np.int64), nothing, nothing, nothing, 10)
    assert heatmap.cells.shape == (2, 0)
    assert len(paint(heatmap, 8, colour=True)) == 3


def test_without_colour_the_letters_tell_the_states() -> None:
    lines = [line.plain for line in paint(_heatmap(), 8, colour=False)]
    assert lines[0] == "    grow ░▒▓█"
    assert lines[1].endswith("––––")
    assert lines[2].endswith("██╳╳")
    assert lines[3].endswith("0000")
    assert lines[4].endswith("ffff")
    for meaning in ("no gradient", "exactly zero", "NaN or infinite", "frozen"):
        assert meaning in lines[5]


def test_with_colour_values_are_blocks_and_nonfinite_is_magenta() -> None:
    console = Console(force_terminal=True, color_system="truecolor", width=80)
    with console.capture() as capture:
        console.print(paint(_heatmap(), 8, colour=True)[2])
    assert "\x1b[38;2;253;231;37m██" in capture.get()  # the largest gradient of the run
    assert "48;2;{};{};{}".format(*NONFINITE) in capture.get()


def test_palette_ends_and_grows_in_lightness() -> None:
    colours = sequential(np.linspace(0, 1, 50, dtype=np.float32)).astype(float)
    lightness = colours @ [0.2126, 0.7152, 0.0722]
    assert colours[0].tolist() == [68, 1, 84]
    assert (np.diff(lightness) > 0).all()


def test_rows_drop_biases_first_and_then_thin() -> None:
    layers = [
        Layer(f"{number}.{name}", kind=kind)
        for number in range(6)
        for name, kind in (("weight", LayerKind.WEIGHT), ("bias", LayerKind.BIAS))
    ]
    layers.append(Layer("0", kind=LayerKind.MODULE))
    assert len(rows_to_show(layers, 12)) == 12
    assert [str(layer) for layer in rows_to_show(layers, 6)] == [f"{number}.weight" for number in range(6)]
    assert [str(layer) for layer in rows_to_show(layers, 2)] == ["0.weight", "5.weight"]


def test_long_paths_keep_both_ends() -> None:
    assert shorten("blocks.11.attention.out_proj.weight", 20) == "blocks.…_proj.weight"
    assert shorten("short", 20) == "short"


def test_sparkline_shows_shape_and_marks_undefined_parts() -> None:
    assert sparkline(np.array([0.0, 1.0, 2.0, 3.0]), 4) == "▁▃▆█"
    assert sparkline(np.array([0.0, 0.0, 7.0, np.nan]), 2) == "▁×"
    assert sparkline(np.array([np.nan, np.inf]), 5) == "××"
    assert sparkline(np.array([]), 5) == ""
    assert len(sparkline(np.random.default_rng(0).random(1000), 40)) == 40
