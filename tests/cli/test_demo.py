"""`undertow demo`: what it prints, what it leaves behind, and how it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import undertow
from undertow.cli.demo import DEFAULT_FAULT, command
from undertow.demos.case import registered


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNDERTOW_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("COLUMNS", "110")
    monkeypatch.delenv("UNDERTOW_DISABLED", raising=False)
    return tmp_path / "runs"


def test_it_names_the_culprit_and_the_change(runs: Path) -> None:
    threads = torch.get_num_threads()
    result = CliRunner().invoke(command, ["--steps", "40"])
    torch.set_num_threads(threads)
    assert result.exit_code == 0, result.output
    truth = registered("undertow.demos")[DEFAULT_FAULT]
    run = undertow.open_run(runs / "latest")
    assert run.status == "finished"
    diagnosis = run.diagnose()
    assert diagnosis.findings[0].code == truth.code
    assert diagnosis.culprit is not None
    assert truth.accepts(diagnosis.culprit.layer or "")
    assert truth.code in result.stdout
    assert diagnosis.culprit.layer in result.stdout
    assert "detach" in result.stdout
    # The picture and the way on go to stderr, without escape codes, because this is no terminal.
    assert "no gradient" in result.stderr
    assert str(run.folder.resolve().name) in result.stderr
    assert "undertow report" in result.stderr
    assert "\x1b[" not in result.output
    assert all(line == line.rstrip() for line in result.stdout.splitlines())


def test_the_list_has_every_fault_and_trains_nothing(runs: Path) -> None:
    result = CliRunner().invoke(command, ["--list"])
    assert result.exit_code == 0
    listed = [line.split()[0] for line in result.stdout.splitlines()]
    assert listed == sorted(registered("undertow.demos"))
    assert 10 < len(listed) <= 25
    assert not runs.exists()


def test_an_unknown_fault_is_a_usage_error_that_names_the_known_ones(runs: Path) -> None:
    result = CliRunner().invoke(command, ["--fault", "gremlins"])
    assert result.exit_code == 2
    assert "gremlins" in result.output
    assert DEFAULT_FAULT in result.output


def test_disabled_it_trains_and_leaves_nothing(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERTOW_DISABLED", "1")
    result = CliRunner().invoke(command, ["--fault", "layer_left_out", "--steps", "3"])
    assert result.exit_code == 0
    assert "UNDERTOW_DISABLED" in result.stderr
    assert not runs.exists()


def test_ctrl_c_leaves_a_complete_run_and_exits_130(runs: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "undertow", "demo", "--steps", "100000"],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        _wait_for_steps(runs, process)
        process.send_signal(signal.SIGINT)
        _, messages = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, messages
    assert "Traceback" not in messages
    run = undertow.open_run(runs / "latest")
    assert run.status == "interrupted"
    assert len(run.steps) >= 10
    assert str(len(run.steps)) in messages


def _wait_for_steps(runs: Path, process: subprocess.Popen[str]) -> None:
    """Until ten steps are on disk, or the program has ended by itself."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.2)
        if (runs / "latest" / "run.json").exists() and len(undertow.open_run(runs / "latest").steps) >= 10:
            return
    raise AssertionError("the demo did not record ten steps")
