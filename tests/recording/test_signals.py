"""A signal that ends the process finds the run closed, at once, and the process ends as it would have."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from undertow.store.reader import RunReader

SCRIPT = """
import ctypes, sys, torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(60):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
{setup}
print("ready", flush=True)
{wait}
"""
IN_C = "ctypes.CDLL(None).poll(None, 0, 20_000)"
IN_PYTHON = "while True: pass"


@pytest.fixture(autouse=True)
def _interrupts_are_heeded() -> Iterator[None]:
    """A shell that puts the tests into the background makes them, and what they start, ignore a Ctrl-C."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


def start(tmp_path: Path, wait: str, setup: str = "", *options: str) -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(wait=wait, setup=setup))
    command = [sys.executable, "-m", "undertow", "run", "--run-dir", str(tmp_path / "run"), *options, str(script)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def ended_within(process: subprocess.Popen[str], seconds: float) -> int:
    try:
        process.communicate(timeout=seconds)
    finally:
        process.kill()
    return process.returncode


@pytest.mark.parametrize("wait", [IN_C, IN_PYTHON], ids=["in C", "in Python"])
@pytest.mark.parametrize("times", [1, 3])
def test_a_terminated_run_is_closed_at_once(tmp_path: Path, wait: str, times: int) -> None:
    process = start(tmp_path, wait)
    for _ in range(times):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.01)
    assert ended_within(process, 15) == -signal.SIGTERM  # the call into C alone would take 20 seconds
    reader = RunReader(tmp_path / "run")
    assert (reader.status, len(reader.steps)) == ("interrupted", 60)


def test_a_second_interrupt_does_not_leave_the_run_open(tmp_path: Path) -> None:
    process = start(tmp_path, IN_PYTHON)
    process.send_signal(signal.SIGINT)
    time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    ended_within(process, 30)
    reader = RunReader(tmp_path / "run")
    assert (reader.status, len(reader.steps)) == ("interrupted", 60)


def test_a_program_that_handles_the_signal_itself_is_left_alone(tmp_path: Path) -> None:
    own = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))"
    process = start(tmp_path, IN_PYTHON, own)
    process.send_signal(signal.SIGTERM)
    assert ended_within(process, 30) == 7
    assert RunReader(tmp_path / "run").status == "failed"


SLOW = """
import time
from undertow.store.writer import RunWriter
close = RunWriter.close
RunWriter.close = lambda writer: (print("closing", flush=True), time.sleep({seconds}), close(writer))
"""


@pytest.mark.parametrize("chronicler", ["never", "always"])
@pytest.mark.parametrize(("seconds", "status"), [(0.3, "finished"), (60, "interrupted")])
def test_a_signal_while_the_run_is_closed(tmp_path: Path, seconds: float, status: str, chronicler: str) -> None:
    """It is closed as it would have been, if that takes less than a second; else it says that it was not."""
    if chronicler == "always":
        slow = "from undertow.recording.recorder_client import RecorderClient\nclose = RecorderClient.close\n"
        slow += "import time\nRecorderClient.close = lambda client, request: (print('closing', flush=True), "
        slow += f"time.sleep({seconds}), close(client, request))\n"
    else:
        slow = SLOW.format(seconds=seconds)
    process = start(tmp_path, "", slow, "--quiet", f"--chronicler={chronicler}")
    assert process.stdout is not None
    assert process.stdout.readline() == "closing\n"
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.01)
    assert ended_within(process, 30) == -signal.SIGTERM
    reader = RunReader(tmp_path / "run")
    assert (reader.status, len(reader.steps)) == (status, 60)
    assert ("the last frames may be missing" in reader.facts.message) == (status == "interrupted")


def test_a_second_interrupt_while_the_run_is_closed(tmp_path: Path) -> None:
    process = start(tmp_path, "", SLOW.format(seconds=60))
    assert process.stdout is not None
    assert process.stdout.readline() == "closing\n"
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None  # it waits for the run
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted while the run was being closed; the last frames may be missing" in said
    assert RunReader(tmp_path / "run").status == "interrupted"
