"""`undertow play` on a real terminal: what a person sees, and how the terminal is left."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len
from tests.show.terminal.runs import HOSTILE, Story, story
from tests.show.terminal.terminal import Terminal, undertow

TRUE = {"COLORTERM": "truecolor"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return story(tmp_path_factory.mktemp("runs") / "story")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return story(tmp_path_factory.mktemp("runs") / "hostile", HOSTILE)


def test_it_replays_scrubs_follows_the_size_and_gives_the_terminal_back(run: Path) -> None:
    with Terminal(undertow("play", str(run)), 100, 30, TRUE) as terminal:
        terminal.until_text("step 119 · loss NaN · paused")  # played to the end by itself
        terminal.until_text("NUM001 step 60  The gradient of middle.weight")
        assert "✖ critical story" in terminal.lines[0]
        assert "╳" in terminal.text
        assert terminal.screen.cursor.hidden
        terminal.press("g")
        terminal.until_text("step 0 · loss 2 · paused")
        terminal.until(lambda: "NUM001" not in terminal.text, "what was known at step 0")
        terminal.press("n")
        terminal.until_text("step 60")
        terminal.until_text("NUM001 step 60")
        terminal.press("\x1b[D" * 3)
        terminal.until_text("step 57 ")
        terminal.press("/head\r")
        terminal.until(lambda: "encoder.weight" not in terminal.text, "the filter")
        assert "head.weight" in terminal.text
        for columns, rows in ((40, 12), (200, 50), (300, 20)):
            terminal.resize(columns, rows)
            terminal.until(lambda rows=rows: "q quit" in terminal.lines[-1] or rows == 12, "the new size")
            terminal.until_text("head.weight")
        terminal.press("q")
        assert terminal.until_over() == 0
        assert terminal.is_restored


@pytest.mark.parametrize(
    ("press", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP)]
)
def test_signals_give_the_terminal_back(run: Path, press: signal.Signals, code: int) -> None:
    with Terminal(undertow("play", str(run)), environment=TRUE) as terminal:
        terminal.until_text("head.weight")
        if press is signal.SIGINT:
            terminal.press("\x03")
        else:
            terminal.signal(press)
        assert terminal.until_over() == code
        assert terminal.is_restored
        assert "Traceback" not in terminal.text


def test_hostile_names_do_nothing(hostile: Path) -> None:
    with Terminal(undertow("play", str(hostile)), 80, 24, TRUE) as terminal:
        terminal.press("G")
        terminal.until_text("paused")
        terminal.until_text("q quit")
        assert "evil" in terminal.text
        assert "层.注意力.权重" in terminal.text.replace("\x00", "").replace(" ", "")
        assert "🔥" in terminal.text
        assert b"owned\x07" not in terminal.written
        assert "\u202e".encode() not in terminal.written
        assert not terminal.screen.title
        terminal.press("q")
        assert terminal.until_over() == 0


def test_a_run_that_is_being_written_is_followed(tmp_path: Path) -> None:
    growing = Story(tmp_path / "run").write(20)
    growing.writer.write_facts()
    with Terminal(undertow("play", str(tmp_path / "run")), 80, 24, TRUE) as terminal:
        terminal.until_text("step 19 · loss 1.03 · ● live")
        growing.write(10).find().write(5, bad=True)
        terminal.until_text("step 34 · loss NaN · ● live")
        terminal.until_text("NUM001 step 30")
        growing.end()
        terminal.until_text("finished")
        terminal.press("q")
        assert terminal.until_over() == 0


def test_a_run_that_is_taken_away_stays_on_the_screen(tmp_path: Path) -> None:
    growing = Story(tmp_path / "run").write(20)
    growing.writer.write_facts()
    with Terminal(undertow("play", str(tmp_path / "run")), 80, 24, TRUE) as terminal:
        terminal.until_text("● live")
        shutil.rmtree(tmp_path / "run")
        terminal.until_text("taken away")
        terminal.press("jmM+")
        terminal.resize(100, 30)
        terminal.until(lambda: "head.weight" in terminal.text and "taken away" in terminal.text, "the last picture")
        terminal.press("q")
        assert terminal.until_over() == 0
        assert terminal.is_restored


@pytest.mark.parametrize(
    ("environment", "has", "lacks"),
    [
        ({"COLORTERM": "truecolor"}, b"48;2;", b"48;5;"),
        ({"TERM": "xterm-256color"}, b"48;5;", b"48;2;"),
        ({"TERM": "xterm"}, b"\x1b[0;30;105m", b"48;"),
        ({"NO_COLOR": "1", "COLORTERM": "truecolor"}, "█".encode(), b"\x1b[1m"),
        ({"NO_COLOR": "1", "PYTHONIOENCODING": "ascii"}, b"XXX", "▀".encode()),
    ],
)
def test_colours_and_characters_fall_back(run: Path, environment: dict[str, str], has: bytes, lacks: bytes) -> None:
    with Terminal(undertow("play", str(run)), environment=environment) as terminal:
        terminal.press("G")
        terminal.until_text("paused")
        terminal.press("q")
        assert terminal.until_over() == 0
    assert has in terminal.written
    assert lacks not in terminal.written
    if "NO_COLOR" in environment:
        assert set(re.findall(rb"\x1b\[([0-9;]*)m", terminal.written)) == {b"0"}
    if "PYTHONIOENCODING" in environment:
        assert terminal.written.isascii()


@pytest.mark.parametrize("columns", [40, 80, 200, 300])
def test_into_a_pipe_it_is_plain_lines(hostile: Path, columns: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "undertow", "play", str(hostile)], capture_output=True, text=True, check=False,
        env={"COLUMNS": str(columns), "TERM": "xterm-256color", "COLORTERM": "truecolor", "PATH": ""},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "critical NUM001 at step 60" in done.stdout
    picture = done.stdout[done.stdout.index("✖ critical story") :].splitlines()
    assert max(map(cell_len, picture)) <= columns
    assert any("╳" in line for line in picture)
    assert all(line == line.rstrip() for line in picture)


def test_wrong_names_are_refused(run: Path) -> None:
    for options, says in ((["--quantity", "gradient_nrm"], "gradient_norm"), (["--palette", "pink"], "colour-blind")):
        command = [sys.executable, "-m", "undertow", "play", str(run), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert says in done.stderr
        assert "Traceback" not in done.stderr
