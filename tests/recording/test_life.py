"""The life of the process that writes a run: it ends with the training, however that ends, and never disturbs it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from tests.recording.trainings import recorder_process, script, train

import undertow
from undertow.recording import training_run

WATCHED = """
model, optimizer, inputs, targets = parts()
watch = undertow.watch(
    model, optimizer, run_dir={folder!r}, every=1, activations=False, quiet=True, chronicler="always"
)
"""


def children(parent: int) -> set[int]:
    found: set[int] = set()
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(place.read_text().rpartition(")")[2].split()[1]) == parent:
                found.add(int(place.parent.name))
    return found


def ended(process: int) -> bool:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_closing_leaves_nothing(tmp_path):
    files, processes = set(os.listdir("/proc/self/fd")), children(os.getpid())
    watch = train(tmp_path / "run", "always", steps=20)
    number = recorder_process(watch).pid
    assert number in children(os.getpid())
    watch.close()
    watch.close()
    assert ended(number)
    assert children(os.getpid()) <= processes
    assert set(os.listdir("/proc/self/fd")) <= files
    assert watch.findings == []
    assert watch.diagnose().steps.recorded == 20


def test_a_process_still_starting_is_not_waited_for(tmp_path):
    watch = train(
        tmp_path / "run", "never", steps=10, at={5: lambda watch: watch._run.recording._client._start_process()}
    )
    number = recorder_process(watch).pid
    watch.close()
    assert ended(number)
    assert len(undertow.open_run(tmp_path / "run").steps) == 10


@pytest.mark.parametrize(
    ("last_words", "status"),
    [
        ("pass", "finished"),
        ("sys.exit(3)", "finished"),
        ("raise ValueError('no')", "failed"),
        ("raise KeyboardInterrupt", "interrupted"),
    ],
)
def test_every_ordinary_end(tmp_path, last_words, status):
    body = WATCHED.format(folder=str(tmp_path / "run"))
    body += f"for _ in range(15): step(model, optimizer, inputs, targets)\n{last_words}"
    process = script(body)
    process.communicate(timeout=120)
    run = undertow.open_run(tmp_path / "run")
    assert len(run.steps) == 15
    assert run.status == status


def test_leaving_without_goodbye(tmp_path):
    """`os._exit` runs nothing of ours: what had been sent is there, and the process does not stay."""
    body = WATCHED.format(folder=str(tmp_path / "run"))
    body += "for _ in range(15): step(model, optimizer, inputs, targets)\n"
    body += "watch.run\nprint(recorder_process(watch).pid, flush=True)\nos._exit(0)"
    process = script(body)
    out, _ = process.communicate(timeout=120)
    assert ended(int(out))
    run = undertow.open_run(tmp_path / "run")
    assert len(run.steps) == 15
    assert run.status == "killed"


def test_a_fork_does_not_keep_the_process_alive(tmp_path):
    """A worker that outlives its killed parent must not hold the line open; nor does it write to it."""
    body = WATCHED.format(folder=str(tmp_path / "run"))
    body += """
for _ in range(15): step(model, optimizer, inputs, targets)
watch.run
if os.fork() == 0:
    step(model, optimizer, inputs, targets)
    time.sleep(60)
    os._exit(0)
step(model, optimizer, inputs, targets)
watch.run
print(recorder_process(watch).pid, flush=True)
time.sleep(60)
"""
    process = script(body)
    assert process.stdout is not None
    number = int(process.stdout.readline())
    group = children(process.pid) - {number}
    process.kill()
    process.wait()
    try:
        assert ended(number)
    finally:
        for worker in group:
            os.kill(worker, signal.SIGKILL)
        process.stdout.close()
    run = undertow.open_run(tmp_path / "run")
    assert len(run.steps) == 16
    assert run.problems == []


def test_signals_of_the_terminal_do_not_reach_it(tmp_path):
    def interrupt(watch):
        assert watch._mailbox.flush(300)
        number = recorder_process(watch).pid
        assert os.getsid(number) == number
        for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(number, one)

    watch = train(tmp_path / "run", "always", steps=30, at={10: interrupt})
    watch.close()
    run = undertow.open_run(tmp_path / "run")
    assert len(run.steps) == 30
    assert run.facts.reasons == []


@pytest.mark.slow
@pytest.mark.parametrize("trial", range(12))
def test_killing_the_training_keeps_what_was_sent(tmp_path, trial):
    body = WATCHED.format(folder=str(tmp_path / "run"))
    body += """
print("training", flush=True)
last = -1
while True:
    step(model, optimizer, inputs, targets)
    answered = watch._run.recording._client._last_answered
    if answered != last:
        last = answered
        print(answered, recorder_process(watch).pid, flush=True)
"""
    process = script(body)
    assert process.stdout is not None
    assert process.stdout.readline() == "training\n"
    first = process.stdout.readline()
    time.sleep(0.1 + 0.083 * trial)
    process.kill()
    lines = [first, *process.stdout.readlines()]
    whole = [line for line in lines if line.endswith("\n")]
    process.stdout.close()
    process.wait()
    answered, number = map(int, whole[-1].split())
    assert ended(number)
    run = undertow.open_run(tmp_path / "run")
    assert run.steps.tolist()[: answered + 1] == list(range(answered + 1))
    assert len(run.steps) > answered
    assert run.problems == []
    assert run.diagnose().health is not None


def test_its_work_is_counted_where_it_competes_with_the_training(tmp_path, monkeypatch):
    """With a thread of the training on every processor, what the other process does is at the training's expense."""
    counted: dict[bool, float] = {}
    for competes in (False, True):
        monkeypatch.setattr(training_run, "competes", lambda threads, answer=competes: answer)
        watch = train(tmp_path / f"run-{competes}", "always", steps=20)
        assert watch._mailbox.flush(300)
        taken = watch._run.recording.take_seconds_elsewhere()
        assert taken > 0
        watch._run.recording._client.seconds_elsewhere = 1000.0
        before = watch._run.governor._added
        watch.log(anything=1.0)
        assert watch._mailbox.flush(300)
        counted[competes] = watch._run.governor._added - before
        watch.close()
    assert counted[False] < 1000.0 <= counted[True]


def test_it_is_small(tmp_path):
    watch = train(tmp_path / "run", "always", steps=5)
    assert watch._mailbox.flush(300)
    maps = Path(f"/proc/{recorder_process(watch).pid}/maps").read_text()
    assert "numpy" in maps
    assert "torch" not in maps
    watch.close()


def test_a_training_that_wants_the_signal_of_broken_pipes_is_spared_it(tmp_path):
    body = "import signal\nfrom tests.recording.trainings import recorder_process\n"
    body += "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n" + WATCHED.format(folder=str(tmp_path / "run"))
    body += """
for number in range(40):
    step(model, optimizer, inputs, targets)
    if number == 15:
        watch.run
        recorder_process(watch)._process.kill()
        recorder_process(watch)._process.wait()
watch.close()
"""
    process = script(body)
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert len(undertow.open_run(tmp_path / "run").steps) == 40


def test_a_process_that_is_stopped_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("undertow.recording.recorder_process._PATIENCE", 2.0)

    def stop(watch):
        assert watch._mailbox.flush(300)
        os.kill(recorder_process(watch).pid, signal.SIGSTOP)

    watch = train(tmp_path / "run", "always", steps=30, at={10: stop})
    watch.close()
    run = undertow.open_run(tmp_path / "run")
    assert len(run.steps) == 30
    assert "it has not answered for 2 seconds" in run.facts.reasons[0]


def test_a_folder_that_was_removed_is_said(tmp_path, capsys):
    folder = tmp_path / "run"
    watch = train(folder, "never", steps=20, quiet=False, at={10: lambda watch: shutil.rmtree(folder)})
    watch.close()
    said = capsys.readouterr().err
    assert "was removed while the training ran" in said
    assert "Read more" not in said
