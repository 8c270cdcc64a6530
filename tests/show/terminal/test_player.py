"""Whatever keys are pressed, in whatever size: a picture, never an exception."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from tests.show.terminal.runs import HOSTILE, Story, story

from undertow.run import open_run
from undertow.show.terminal.ability import Ability, Depth
from undertow.show.terminal.camera import Camera
from undertow.show.terminal.playback import _ACTS
from undertow.show.terminal.player import _GONE, Player

KEYS = st.sampled_from([*_ACTS, "enter", "backspace", "x", "*", "redraw"])
SIZES = st.tuples(st.integers(1, 300), st.integers(1, 70))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    home = tmp_path_factory.mktemp("runs")
    return [story(home / "hostile", HOSTILE), Story(home / "one").write(1).end(), Story(home / "none").end()]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2), st.lists(st.tuples(KEYS, SIZES, st.floats(0, 3)), max_size=12), st.sampled_from(Depth))
def test_any_keys_at_any_size(
    folders: list[Path], which: int, presses: list[tuple[str, tuple[int, int], float]], depth: Depth
) -> None:
    player = Player(Camera(open_run(folders[which])), Ability(depth))
    for key, (columns, rows), seconds in presses:
        player.playback.press(key)
        player.playback.advance(seconds)
        lines = player.lines(columns, rows)
        if player.playback.helping:
            continue  # cut off by the screen
        assert len(lines) <= rows
        assert all(cell_len(re.sub(r"\x1b\[[0-9;]*[mG]", "", line)) <= columns for line in lines)


def test_the_last_picture_of_a_run_that_is_gone_stays(tmp_path: Path) -> None:
    player = Player(Camera(open_run(story(tmp_path / "run"))), Ability(Depth.NONE))
    before = player._lines_or_before(80, 24)
    player.status = _GONE
    *picture, message = player._lines_or_before(80, 24)
    assert picture == before[:23]
    assert message.strip() == f"{_GONE}  q quit"
