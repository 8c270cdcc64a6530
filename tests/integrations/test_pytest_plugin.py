"""A user's own tests guard a training: real pytest sessions in processes of their own, and the function alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from undertow import assert_trains_healthy
from undertow.errors import SettingError

USERS_TESTS = """
import torch
from torch import nn

def train(rate, steps=40):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(steps):
        inputs = torch.randn(32, 8)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True)).backward()
        optimizer.step()

def test_good(assert_trains_healthy):
    assert assert_trains_healthy(lambda: train(0.05)).steps.recorded == 40

def test_bad(assert_trains_healthy):
    assert_trains_healthy(lambda: train(1e6))

def test_twice_in_one_test(assert_trains_healthy, tmp_path):
    assert_trains_healthy(lambda: train(0.05))
    assert_trains_healthy(lambda: train(0.05))
    assert len(list(tmp_path.iterdir())) == 2
"""


def train(steps: int = 30, learn: bool = True) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        inputs = torch.randn(32, 8)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        (loss if learn else loss * float("nan")).backward()
        optimizer.step()


def test_the_fixture_comes_with_the_installation(tmp_path: Path) -> None:
    (tmp_path / "test_training.py").write_text(USERS_TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert "1 failed" in done.stdout
    assert "The training is not healthy: " in done.stdout
    assert "undertow report " in done.stdout
    assert "healthy_training.py" not in done.stdout  # the traceback is the user's


def test_a_healthy_training_gives_its_diagnosis(tmp_path: Path) -> None:
    diagnosis = assert_trains_healthy(train, run_dir=tmp_path / "run")
    assert diagnosis.steps.recorded == 30
    assert (tmp_path / "run" / "run.json").exists()


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="not healthy: NUM002") as caught:
        assert_trains_healthy(lambda: train(learn=False), run_dir=tmp_path / "run")
    assert str(tmp_path / "run") in str(caught.value)


def test_codes_can_be_allowed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_trains_healthy(lambda: train(learn=False), run_dir=tmp_path / "one")
    codes = str(caught.value).splitlines()[0].partition(": ")[2].split(", ")
    assert_trains_healthy(lambda: train(learn=False), run_dir=tmp_path / "two", ignore=codes)


def test_too_few_steps_prove_nothing(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="0 optimizer steps; at least 1"):
        assert_trains_healthy(lambda: None, run_dir=tmp_path / "none")
    with pytest.raises(AssertionError, match="3 optimizer steps; at least 10"):
        assert_trains_healthy(lambda: train(3), run_dir=tmp_path / "few", least_steps=10)


def test_an_error_of_the_training_is_its_own(tmp_path: Path) -> None:
    def broken() -> None:
        raise ZeroDivisionError("theirs")

    with pytest.raises(ZeroDivisionError, match="theirs"):
        assert_trains_healthy(broken, run_dir=tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"fail_on": "bad"}, "no severity"), ({"ignore": "NUM999"}, "NUM999"), ({"every": -1}, "-1")],
)
def test_wrong_arguments_are_named(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=words):
        assert_trains_healthy(train, run_dir=tmp_path / "run", **settings)
