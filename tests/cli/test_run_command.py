"""`undertow run`: real processes; the script must not be able to tell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import undertow

TRAIN = """
import sys, torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps):
    for step in range(steps):
        optimizer.zero_grad()
        inputs = torch.randn(16, 8)
        loss = torch.nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
        loss.backward()
        optimizer.step()
"""


def script(folder: Path, body: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(TRAIN + textwrap.dedent(body))
    return path


def undertow_run(folder: Path, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": "", **options.pop("env", {})}  # type: ignore[dict-item]
    return subprocess.run(
        [sys.executable, "-m", "undertow", "run", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=120, env=environment, check=False,
    )  # fmt: skip


def test_watches_an_unchanged_script(tmp_path):
    path = script(tmp_path, "train(5)\nprint('done')\n")
    done = undertow_run(tmp_path, "--run-dir", "out/deep/run", "--every", "1", str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
    assert "5 steps" in done.stderr
    run = undertow.open_run(tmp_path / "out/deep/run")
    assert run.status == "finished"
    assert run.steps.tolist() == list(range(5))
    assert "0.weight" in run.layers


def test_default_folder_and_latest_link(tmp_path):
    path = script(tmp_path, "train(2)\n")
    undertow_run(tmp_path, "--name", "first", str(path))
    run = undertow.open_run(tmp_path / "runs" / "latest")
    assert run.steps.tolist() == [0, 1]


FACTS = """
import json, os, sys, __main__
print(json.dumps({
    "argv": sys.argv, "name": __name__, "file": __file__, "main": __main__.__dict__ is globals(),
    "path0": sys.path[0], "package": __package__, "spec": __spec__ is None,
}))
train(1)
"""


def test_script_sees_the_same_world(tmp_path):
    (tmp_path / "sub").mkdir()
    script(tmp_path / "sub", FACTS)
    arguments = ["sub/train.py", "--epochs", "3", "-x", "--", "--run-dir"]
    plain = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
    seen = undertow_run(tmp_path, "--run-dir", "r", *arguments)
    assert json.loads(seen.stdout) == json.loads(plain.stdout)


def test_module_option(tmp_path):
    package = tmp_path / "project"
    package.mkdir()
    (package / "__init__.py").write_text("")
    script(package, FACTS.replace('"spec": __spec__ is None', '"spec": __spec__.name'), "main.py")
    plain = subprocess.run(
        [sys.executable, "-m", "project.main", "a", "b"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    seen = undertow_run(tmp_path, "--run-dir", "r", "-m", "project.main", "a", "b")
    assert seen.returncode == 0, seen.stderr
    assert json.loads(seen.stdout) == json.loads(plain.stdout)


@pytest.mark.parametrize(
    ("body", "code", "status"),
    [
        ("train(2)\nsys.exit(7)", 7, "failed"),
        ("train(2)\nsys.exit()", 0, "finished"),
        ("train(2)\nsys.exit('no more data')", 1, "failed"),
        ("train(2)\ndef f():\n    return 1 / 0\nf()", 1, "failed"),
        (
            "import atexit\natexit.register(print, 'bye')\ntrain(2)\nraise KeyboardInterrupt",
            -signal.SIGINT,
            "interrupted",
        ),
    ],
)
def test_exit_code_and_traceback(tmp_path, body, code, status):
    path = script(tmp_path, body)
    plain = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    seen = undertow_run(tmp_path, "--run-dir", "r", path.name)
    assert plain.returncode == code
    assert seen.returncode == code, seen.stderr
    assert seen.stdout == plain.stdout
    own = [line for line in seen.stderr.splitlines(keepends=True) if not line.startswith("undertow:")]
    assert "".join(own) == plain.stderr
    run = undertow.open_run(tmp_path / "r")
    assert run.status == status
    assert run.steps.tolist() == [0, 1]
    assert ("failed" in seen.stderr) == (status == "failed")
    diagnosis = run.diagnose()
    assert diagnosis.status == status
    if "1 / 0" in body:
        place = 1 + path.read_text().splitlines().index("    return 1 / 0")
        assert diagnosis.message == f"ZeroDivisionError: division by zero (train.py:{place})"
        assert "nothing to do" not in diagnosis.story


def test_syntax_error_and_missing_script(tmp_path):
    (tmp_path / "bad.py").write_text("def f(:\n")
    plain = subprocess.run([sys.executable, "bad.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    seen = undertow_run(tmp_path, "--run-dir", "r", "bad.py")
    own = [line for line in seen.stderr.splitlines(keepends=True) if not line.startswith("undertow:")]
    assert (seen.returncode, "".join(own)) == (plain.returncode, plain.stderr)
    missing = undertow_run(tmp_path, "--run-dir", "r2", "no_such_file.py")
    assert missing.returncode == 2
    assert "no_such_file.py" in missing.stderr
    assert len(missing.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "r2").exists()


def _wait_for_frames(folder):
    """Until more than ten steps are on disk, however busy the machine."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if (folder / "run.json").exists() and len(undertow.open_run(folder).steps) > 10:
            return
        time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_leave_a_complete_run(tmp_path, number):
    path = script(tmp_path, "print('ready', flush=True)\ntrain(10_000_000)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "undertow", "run", "--run-dir", "r", str(path)],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    _wait_for_frames(tmp_path / "r")
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == -number
    run = undertow.open_run(tmp_path / "r")
    assert run.status == "interrupted"
    assert len(run.steps) > 10
    assert run.problems == []


def test_killed_run_reads_back(tmp_path):
    path = script(tmp_path, "print('ready', flush=True)\ntrain(10_000_000)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "undertow", "run", "--run-dir", "r", "--quiet", str(path)],
        cwd=tmp_path, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    _wait_for_frames(tmp_path / "r")
    process.kill()
    process.communicate()
    run = undertow.open_run(tmp_path / "r")
    assert run.status == "killed"
    assert len(run.steps) > 10
    assert run.diagnose().health == "healthy"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_does_not_attach_in_data_loader_workers(tmp_path, method):
    body = f"""
    class Data(torch.utils.data.Dataset):
        def __len__(self): return 32
        def __getitem__(self, i):
            from undertow.probe import taps
            return torch.tensor(float(taps.installed()))
    if __name__ == "__main__":
        train(1)
        loader = torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=2, multiprocessing_context={method!r})
        print([float(batch.max()) for batch in loader])
        train(1)
    """
    path = script(tmp_path, body)
    done = undertow_run(tmp_path, "--run-dir", "r", str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[0.0, 0.0, 0.0, 0.0]"
    assert undertow.open_run(tmp_path / "r").steps.tolist() == [0, 1]


def test_disabled_runs_the_script_alone(tmp_path):
    path = script(tmp_path, "train(2)\nprint(torch.autograd.backward.__module__)\n")
    done = undertow_run(tmp_path, "--run-dir", "r", str(path), env={"UNDERTOW_DISABLED": "1"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "torch.autograd\n", "")
    assert not (tmp_path / "r").exists()


def test_script_that_never_steps(tmp_path):
    path = script(tmp_path, "print('nothing to train')\n")
    done = undertow_run(tmp_path, "--run-dir", "r", str(path))
    assert done.returncode == 0
    assert done.stdout == "nothing to train\n"
    assert "no optimizer of the watched model ever took a step" in done.stderr


def test_watch_inside_a_watched_script_is_the_same_watch(tmp_path):
    path = script(tmp_path, "import undertow\nw = undertow.watch(model)\ntrain(3)\nw.log(extra=1.0)\nw.close()\n")
    done = undertow_run(tmp_path, "--run-dir", "r", str(path))
    assert done.returncode == 0, done.stderr
    assert undertow.open_run(tmp_path / "r").steps.tolist() == [0, 1, 2]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--every", "-3"], "-3"),
        (["--bogus"], "--bogus"),
        (["--resume"], "resume"),
        (["--every", "sometimes"], "sometimes"),
        (["--budget", "7"], "7"),
        (["--on-critical", "panic"], "panic"),
        (["--run-dir", "/proc/nowhere"], "/proc/nowhere"),
    ],
)
def test_bad_options(tmp_path, arguments, says):
    path = script(tmp_path, "train(1)\nprint('trained')\n")
    done = undertow_run(tmp_path, *arguments, str(path))
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert "trained" not in done.stdout


def test_resume_continues_the_axis(tmp_path):
    path = script(tmp_path, "train(3)\n")
    undertow_run(tmp_path, "--run-dir", "r", str(path))
    again = undertow_run(tmp_path, "--run-dir", "r", str(path))
    assert again.returncode == 2
    assert "resume" in again.stderr.lower()
    resumed = undertow_run(tmp_path, "--run-dir", "r", "--resume", str(path))
    assert resumed.returncode == 0, resumed.stderr
    run = undertow.open_run(tmp_path / "r")
    assert run.steps.tolist() == list(range(6))
    assert run.facts.seams == [3]


def test_an_error_inside_of_torch_names_the_line_that_called_it(tmp_path):
    path = script(tmp_path, "train(2)\nloss = torch.zeros(1)\nloss.backward()")
    undertow_run(tmp_path, "--run-dir", "r", path.name)
    place = 1 + path.read_text().splitlines().index("loss.backward()")
    assert f"(train.py:{place})" in undertow.open_run(tmp_path / "r").diagnose().message
