"""Places on a scale and their numbers; names for more rows than there is room for."""

from __future__ import annotations

import numpy as np
import pytest

from undertow.views.group_labels import labels_of
from undertow.views.scale import Scale, ScaleKind, levels_of, number, ticks_of, value_at

SCALES = [
    Scale(ScaleKind.LOGARITHMIC, 1e-4, 1e2),
    Scale(ScaleKind.LINEAR, -1.0, 1.0, diverging=True),
    Scale(ScaleKind.SIGNED, 1e-3, 10.0, diverging=True),
]


@pytest.mark.parametrize("scale", SCALES)
def test_the_number_at_a_level_has_that_level(scale: Scale) -> None:
    for level in (0.0, 0.2, 0.5, 0.9, 1.0):
        assert levels_of(scale, np.array([value_at(scale, level)]))[0] == pytest.approx(level, abs=1e-6)


def test_what_lies_beyond_is_cut_off_and_nan_stays() -> None:
    logarithmic, _, signed = SCALES
    assert levels_of(logarithmic, np.array([0.0, 1e-9, 1e9, np.nan])).tolist()[:3] == [0, 0, 1]
    assert np.isnan(levels_of(logarithmic, np.array([np.nan])))
    assert levels_of(signed, np.array([-100.0, -1e-9, 0.0, 1e-9, 100.0])).tolist() == [0, 0.5, 0.5, 0.5, 1]


def test_ticks_are_whole_decades_and_no_more_than_asked_for() -> None:
    ticks = ticks_of(SCALES[0], 4)
    assert [text for _, text in ticks] == ["1e-4", "0.01", "1", "100"]
    assert [level for level, _ in ticks] == pytest.approx([0, 1 / 3, 2 / 3, 1])
    wide = ticks_of(Scale(ScaleKind.LOGARITHMIC, 1e-30, 1e30), 5)
    assert len(wide) <= 5
    assert [text for _, text in ticks_of(SCALES[1], 3)] == ["-1", "0", "1"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (1.0, "1"), (0.25, "0.25"), (0.0123456, "0.0123"), (123.456, "123"), (1234.5, "1,234"),
        (1e-7, "1e-7"), (-2.5e12, "-2.5e+12"), (99_999.4, "99,999"), (float("nan"), "NaN"), (float("-inf"), "-inf"),
    ],
)  # fmt: skip
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


def test_every_row_has_its_name_while_there_is_room() -> None:
    paths = ["a.weight", "a.bias", "b.weight"]
    assert [(label.text, label.start, label.end) for label in labels_of(paths, 3)] == [
        ("a.weight", 0, 1), ("a.bias", 1, 2), ("b.weight", 2, 3),
    ]  # fmt: skip


def test_rows_of_a_module_share_its_name() -> None:
    paths = [f"blocks.{block}.{part}.weight" for block in range(10) for part in ("attn", "mlp", "norm")]
    labels = labels_of(["tokens", *paths, "head"], 15)
    assert [label.text for label in labels] == ["tokens", *(f"blocks.{block}" for block in range(10)), "head"]
    assert (labels[1].start, labels[1].end) == (1, 4)


def test_where_all_begin_alike_some_of_the_next_names_stand_for_all() -> None:
    paths = [f"blocks.{block}.weight" for block in range(100)]
    labels = labels_of(paths, 10)
    assert [label.text for label in labels] == [f"blocks.{block}" for block in range(0, 100, 10)]
    flat = labels_of([f"parameter{place}" for place in range(100)], 10)
    assert len(flat) == 10
