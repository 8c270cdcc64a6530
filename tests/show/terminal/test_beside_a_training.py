"""The picture below the output of a training: nothing that is printed is lost, and the terminal is given back."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.show.terminal.runs import Story
from tests.show.terminal.terminal import Terminal, undertow

TRUE = {"COLORTERM": "truecolor"}
PROGRAM = """
import os, sys, time
from pathlib import Path
from undertow.show.terminal.beside import View
from undertow.show.bars import say
view = View(Path({folder!r}), "a title", gives_way={gives_way})
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no children")
def lines(count):
    for number in range(count):
        print("printed line", number, flush=True)
        time.sleep(0.01)
with view:
    lines(60)
    print("shown", flush=True)
    {body}
print("after")
"""


@pytest.fixture
def live(tmp_path: Path) -> Path:
    """A run that is being written, by this process."""
    written = Story(tmp_path / "run").write(30).find().write(5, bad=True)
    written.facts.process, written.facts.host = os.getpid(), os.uname().nodename
    written.writer.write_facts()
    return tmp_path / "run"


def program(folder: Path, body: str = "sys.stdin.readline()", gives_way: bool = True) -> list[str]:
    text = PROGRAM.format(folder=str(folder), gives_way=gives_way, body=textwrap.indent(body, "    ").strip())
    return [sys.executable, "-c", text]


def printed(terminal: Terminal) -> list[str]:
    return re.findall(r"printed line \d+", "\n".join(terminal.history))


ALL = [f"printed line {number}" for number in range(60)]


def test_it_stands_below_what_is_printed(live: Path) -> None:
    with Terminal(program(live), 100, 30, TRUE) as terminal:
        terminal.until_text("NUM001 step 30")
        terminal.until_text("shown")
        assert "a title" in terminal.text
        assert "no children" in "\n".join(terminal.history)
        places = [place for place, line in enumerate(terminal.lines) if "printed line" in line or line == "shown"]
        assert places == list(range(places[0], places[0] + len(places)))  # the output is one piece
        assert max(places) < next(place for place, line in enumerate(terminal.lines) if "a title" in line)
        assert printed(terminal) == ALL
        terminal.press("\r")
        assert terminal.until_over() == 0
        assert terminal.is_restored
        assert "a title" not in terminal.text
        assert "gradient_norm" not in "\n".join(terminal.history)
        assert printed(terminal) == ALL
        assert "after" in terminal.lines[terminal.lines.index("shown") + 1 :]


@pytest.mark.parametrize("way", ["an exception", "a signal", "kill -9", "os._exit"])
def test_however_it_ends_the_terminal_is_given_back(live: Path, way: str) -> None:
    bodies = {"an exception": "sys.stdin.readline()\n1 / 0", "os._exit": "sys.stdin.readline()\nos._exit(3)"}
    with Terminal(program(live, bodies.get(way, "time.sleep(100)")), 90, 28, TRUE) as terminal:
        terminal.until_text("a title")
        terminal.until_text("shown")
        if way in bodies:
            terminal.press("\r")
        elif way == "a signal":
            terminal.press("\x03")
        else:
            terminal.signal(signal.SIGKILL)
        terminal.until(lambda: "a title" not in terminal.text and terminal.is_restored, "the terminal given back")
        assert printed(terminal) == ALL
        code = terminal.until_over()
        assert code == {"an exception": 1, "a signal": -signal.SIGINT, "kill -9": -signal.SIGKILL, "os._exit": 3}[way]


def test_closing_twice_touches_no_file_that_was_opened_since(live: Path) -> None:
    """The program's next files get the numbers of those that were closed."""
    body = """
view.close()
pipes = [os.pipe() for _ in range(4)]
view.close()
for reader, writer in pipes:
    os.write(writer, b"mine")
    print("read", os.read(reader, 9).decode())
sys.stdin.readline()
"""
    with Terminal(program(live, body), 90, 28, TRUE) as terminal:
        terminal.until(lambda: "\n".join(terminal.history).count("read mine") == 4, "what was written, and no more")
        terminal.press("\r")
        assert terminal.until_over() == 0


@pytest.mark.parametrize(("gives_way", "seen"), [(True, False), (False, True)])
def test_a_progress_bar_is_left_alone(live: Path, gives_way: bool, seen: bool) -> None:
    body = """
from tqdm import tqdm
for number in tqdm(range(100), mininterval=0, ascii=True):
    time.sleep(0.02)
    if number == 50:
        say("undertow: a word")
sys.stdin.readline()
"""
    with Terminal(program(live, body, gives_way), 90, 28, TRUE) as terminal:
        terminal.until_text("100%|")
        terminal.until(lambda: ("a title" in terminal.text) is seen, "the picture gone, or still there")
        assert "undertow: a word" in terminal.lines
        assert sum("100%|####" in line for line in terminal.lines) == 1
        assert sum("it/s]" in line for line in terminal.lines) == 1
        terminal.press("\r")
        assert terminal.until_over() == 0
        assert terminal.is_restored


@pytest.mark.parametrize("environment", [{"CI": "1"}, {"TERM": "dumb"}])
def test_where_it_is_not_wanted_there_is_none(live: Path, environment: dict[str, str]) -> None:
    with Terminal(program(live, "pass"), 90, 28, environment) as terminal:
        assert terminal.until_over() == 0
    assert b"\x1b" not in terminal.written


def test_no_terminal_no_escape_codes(live: Path) -> None:
    done = subprocess.run(program(live, "pass"), capture_output=True, check=True, env={**os.environ, **TRUE})
    assert b"\x1b" not in done.stdout + done.stderr
    assert done.stderr == b""


TRAIN = """
import sys, time, torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
while True:
    optimizer.zero_grad()
    inputs = torch.randn(16, 8)
    torch.nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1)).backward()
    optimizer.step()
    if step % 10 == 0:
        print("step", step, flush=True)
    step += 1
    time.sleep(0.01)
"""


def test_undertow_run_draws_it_and_gives_way_to_sigterm(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "pyproject.toml").write_text("")
    with Terminal(undertow("run", "--run-dir", "r", "--name", "mine", "train.py"), 80, 30, TRUE, tmp_path) as terminal:
        terminal.until_text("healthy mine")
        terminal.until_text("2.weight")
        terminal.until_text("step 50")
        terminal.signal(signal.SIGTERM)
        assert terminal.until_over() == -signal.SIGTERM
        assert terminal.is_restored
        assert "healthy mine" not in terminal.text
        told = [int(number) for number in re.findall(r"^step (\d+)$", "\n".join(terminal.history), re.MULTILINE)]
        assert told == list(range(0, told[-1] + 1, 10))
        assert "steps watched" in " ".join(terminal.lines)
