"""Which runs a dashboard holds in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import write
from tests.detect.building import Training

from undertow.show.web import library
from undertow.show.web.library import Library
from undertow.store import listing


@pytest.fixture
def several(tmp_path: Path) -> Library:
    for number in range(5):
        write(tmp_path / "runs" / str(number), Training().run(3))
    return Library(tmp_path / "runs")


def ask(several: Library, *names: str) -> list[str]:
    for name in names:
        with several.reading(name) as opened:
            opened.run.flow(last=8)
            opened.looked = 0.0
        with several.reading(name):
            pass
    return list(several._open)


def test_the_least_recently_used_is_closed_when_runs_are_many(
    several: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_OPEN_AT_ONCE", 3)
    assert ask(several, "0", "1", "2", "0", "3") == ["2", "0", "3"]


def test_the_least_recently_used_is_closed_when_runs_are_large(
    several: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(several, "0", "1")
    held = {one.size for one in several._open.values()}
    assert min(held) > 0
    monkeypatch.setattr(library, "_MOST_BYTES", int(2.5 * max(held)))
    for name in ("2", "3", "4", "0"):
        assert len(ask(several, name)) <= 3  # one that was just opened has no size yet
    monkeypatch.setattr(library, "_MOST_BYTES", 1)
    ask(several, "3")
    assert ask(several, "3") == ["3"], "the one that is asked for stays, whatever it takes"


def test_a_run_that_nobody_asks_for_is_closed(several: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(several, "0", "1") == ["0", "1"]
    several._open["0"].asked -= 2 * library._FORGET_SECONDS
    several._searched = float("-inf")
    several.runs()
    assert list(several._open) == ["1"]


def test_a_list_reads_runs_that_are_open_from_what_is_open(several: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index of a long run is large: the list must not make another one, again and again."""
    listed = several.runs()
    ask(several, "0", "1")
    made: list[Path] = []
    real = listing.RunReader
    monkeypatch.setattr(listing, "RunReader", lambda folder: made.append(folder) or real(folder))
    several._searched = float("-inf")
    assert [one.summary for one in several.runs()] == [one.summary for one in listed]
    assert sorted(folder.name for folder in made) == ["2", "3", "4"]
    with several.reading("0"):  # somebody reads it: the list does not wait
        several._searched = float("-inf")
        assert len(several.runs()) == 5
