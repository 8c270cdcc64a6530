"""What happens around a training, in the middle of it: the run is complete, and nothing hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.recording.trainings import script, train

import undertow
from undertow.probe import taps

WORKERS = """
import multiprocessing, torch
from torch import nn

def square(number): return number * number

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
context = multiprocessing.get_context("fork")
for step in range(20):
    if step == 10:
        with context.Pool(2) as pool:  # ends its workers with SIGTERM
            print(pool.map(square, range(3)))
        loader = torch.utils.data.DataLoader(torch.randn(8, 4), num_workers=1, multiprocessing_context="fork")
        print(sum(1 for _ in loader))
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("over")
"""


def test_forked_workers_that_are_terminated(tmp_path: Path) -> None:
    """Their signals are theirs: they neither end the training nor are they lost."""
    (tmp_path / "script.py").write_text(WORKERS)
    command = [sys.executable, "-m", "undertow", "run", "--run-dir", tmp_path / "run", tmp_path / "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (0, "[0, 1, 4]\n8\nover\n")
    run = undertow.open_run(tmp_path / "run")
    assert (run.status, len(run.steps)) == ("finished", 20)


KILLED_AT_ONCE = """
import os, signal, torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
for step in range(50):
    worker = os.fork()
    if worker == 0:
        os._exit(signal.pthread_sigmask(signal.SIG_BLOCK, ()) != before)
    if step % 2:
        os.kill(worker, signal.SIGTERM)  # before it has run a line
    assert os.waitpid(worker, 0)[1] in (0, signal.SIGTERM)
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
"""


def test_a_worker_that_is_terminated_while_it_is_forked(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(KILLED_AT_ONCE)
    command = [sys.executable, "-m", "undertow", "run", "--run-dir", tmp_path / "run", tmp_path / "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    run = undertow.open_run(tmp_path / "run")
    assert (run.status, len(run.steps)) == ("finished", 50)


@pytest.mark.parametrize("chronicler", ["never", "always"])
def test_another_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chronicler: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    watch = train(Path("run"), chronicler, steps=40, at={20: lambda watch: os.chdir("elsewhere")}, disk_budget="1MB")
    watch.close()
    assert list(Path().iterdir()) == []
    assert (watch.run.status, len(watch.run.steps)) == ("finished", 40)


@pytest.mark.parametrize("chronicler", ["never", "always"])
@pytest.mark.parametrize("seconds", [-1e8, 1e8])
def test_a_clock_that_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, chronicler: str) -> None:
    real = time.time

    def jump(watch: undertow.Watch) -> None:
        monkeypatch.setattr(time, "time", lambda: real() + seconds)

    told: list[object] = []
    events = {0: lambda watch: watch.on_finding(told.append), 70: jump}
    train(tmp_path / "run", chronicler, at=events).close()
    run = undertow.open_run(tmp_path / "run")
    assert (run.status, run.steps.tolist(), run.problems) == ("finished", list(range(120)), [])
    assert told


def test_a_fork_while_another_thread_holds_the_taps(tmp_path: Path) -> None:
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with taps._lock:
            held.set()
            over.wait()

    def fork(watch: undertow.Watch) -> None:
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        worker = os.fork()
        if worker == 0:
            os._exit(int(taps.installed()))
        over.set()
        thread.join()
        assert os.waitpid(worker, 0)[1] == 0

    watch = train(tmp_path / "run", "never", steps=20, at={10: fork})
    watch.close()
    assert len(watch.run.steps) == 20


def test_daemon_threads_that_outlive_the_training(tmp_path: Path) -> None:
    body = f"""
import faulthandler, threading
faulthandler.enable()
faulthandler.dump_traceback_later(3600)
trained = threading.Event()
def forever():
    watch = undertow.watch(model, optimizer, run_dir={str(tmp_path / "run")!r}, every=1, quiet=True)
    for _ in range(20): step(model, optimizer, inputs, targets)
    trained.set()
    threading.Event().wait()
model, optimizer, inputs, targets = parts()
threading.Thread(target=forever, daemon=True).start()
trained.wait()
print("over", flush=True)
"""
    process = script(body)
    said, _ = process.communicate(timeout=240)
    assert (process.returncode, said) == (0, "over\n")
    run = undertow.open_run(tmp_path / "run")
    assert (run.status, len(run.steps)) == ("finished", 20)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_stream_that_is_full(tmp_path: Path, stream: str) -> None:
    """Whoever prints to it ends as without us."""
    (tmp_path / "script.py").write_text(WORKERS.replace("step == 10", "False"))
    codes: list[int] = []
    for command in (["-m", "undertow", "run", "--run-dir", tmp_path / "run"], []):
        with open("/dev/full", "wb") as full:
            streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: full}
            done = subprocess.run([sys.executable, *command, tmp_path / "script.py"], check=False, **streams)
        codes.append(done.returncode)
    assert codes[0] == codes[1]
    assert undertow.open_run(tmp_path / "run").status == ("failed" if codes[0] else "finished")
