"""What a user's own function does with a finding: it can close the run, and its errors end neither run nor training."""

from __future__ import annotations

import threading

import pytest
from tests.recording.trainings import script, train

import undertow

STEPS = 120  # from step 60 on, something is wrong


def run_with(folder, callback, chronicler="never", **settings):
    watch = train(folder, chronicler, at={0: lambda watch: watch.on_finding(lambda _: callback(watch))}, **settings)
    watch.close()
    return undertow.open_run(folder)


@pytest.mark.parametrize("chronicler", ["never", "always"])
@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseException("odd"), ValueError()]
)
def test_whatever_it_raises_is_said_once(tmp_path, capsys, error, chronicler):
    calls = []

    def fails(watch):
        calls.append(watch)
        raise error

    run = run_with(tmp_path / "run", fails, chronicler, quiet=False)
    assert len(calls) > 1
    assert (run.status, len(run.steps)) == ("finished", STEPS)
    said = [line for line in capsys.readouterr().err.splitlines() if "callback" in line]
    assert len(said) == 1
    assert type(error).__name__ in said[0]
    assert [reason for reason in run.facts.reasons if type(error).__name__ in reason]


def test_of_two_that_fail_both_are_named(tmp_path):
    def first(finding):
        raise ValueError("first")

    def second(finding):
        raise ValueError("second")

    def both(watch):
        watch.on_finding(first)
        watch.on_finding(second)

    train(tmp_path / "run", "never", at={0: both}).close()
    assert len(undertow.open_run(tmp_path / "run").facts.reasons) == 2


@pytest.mark.parametrize("chronicler", ["never", "always"])
def test_it_can_close_the_run(tmp_path, chronicler):
    closed = []

    def close(watch):
        watch.close()
        closed.append(watch.closed)

    watch = train(tmp_path / "run", chronicler, at={0: lambda watch: watch.on_finding(lambda _: close(watch))})
    watch.close()  # waits for that
    run = undertow.open_run(tmp_path / "run")
    assert run.status == "finished"
    assert 60 < len(run.steps) <= STEPS
    assert run.facts.ended is not None
    assert closed
    assert all(closed)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("undertow")]


def test_it_can_close_the_run_from_a_thread_of_its_own(tmp_path):
    def close(watch):
        threading.Thread(target=watch.close).start()

    run = run_with(tmp_path / "run", close)
    assert run.status == "finished"


def test_one_that_never_returns_is_left_behind(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("undertow.recording.live_watch.PATIENCE", 1.0)
    forever = threading.Event()
    run = run_with(tmp_path / "run", lambda watch: forever.wait(), quiet=False)
    forever.set()
    assert (run.status, run.facts.message) == ("finished", "the last frames could not be written in time")
    assert "the last frames could not be written in time" in capsys.readouterr().err


def test_one_that_exits_at_once(tmp_path):
    """`os._exit` is what it says."""
    body = f"""
from tests.recording.trainings import train
train({str(tmp_path / "run")!r}, "never", at={{0: lambda watch: watch.on_finding(lambda _: os._exit(5))}}).close()
"""
    process = script(body)
    process.communicate(timeout=120)
    assert process.returncode == 5
    run = undertow.open_run(tmp_path / "run")
    assert run.status == "killed"
    assert len(run.steps) >= 60
    assert run.problems == []


@pytest.mark.parametrize("ends", ["os._exit(0)", "sys.exit(0)", "return"])
def test_one_that_forks(tmp_path, ends):
    body = f"""
from tests.recording.trainings import train
here = os.getpid()
def forks(finding):
    number = os.fork()
    if number == 0:
        assert watch.findings == [] and watch.folder is None and len(watch.run.steps) > 0
        watch.close()
        {ends}
    else:
        os.waitpid(number, 0)
def keep(one):
    global watch
    watch = one
    watch.on_finding(forks)
train({str(tmp_path / "run")!r}, "never", at={{0: keep}}).close()
print("closed", flush=True)
"""
    process = script(body)
    said, _ = process.communicate(timeout=240)
    assert (process.returncode, said) == (0, "closed\n")
    run = undertow.open_run(tmp_path / "run")
    assert (run.status, len(run.steps), run.problems) == ("finished", STEPS, [])
    assert run.facts.reasons == []
