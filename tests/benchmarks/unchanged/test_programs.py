"""A few of the programs of `benchmarks.unchanged`, for real: those that need no more than the tests do."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks import ROOT
from benchmarks.unchanged.verdict import Result, judge

PROGRAMS = {
    "loops_gradients": ["gradient-penalty", "double-backward-through-convolutions", "maml"],
    "loops_memory": ["checkpointing-reentrant", "gradient-scaler-that-skips"],
    "loops_modules": ["hooks-of-the-users-own", "a-subclass-of-tensor", "a-torch-dispatch-mode", "lazy-modules"],
    "loops_surroundings": ["threads-that-share-a-step"],
    "transformers_text": ["mixtral", "mamba", "t5"],
}


@pytest.mark.parametrize("group", PROGRAMS)
def test_watching_changes_nothing(group: str) -> None:
    prefix = group.partition("_")[0]
    names = [f"{prefix}/{name}" for name in PROGRAMS[group]]
    command = [sys.executable, "-m", "benchmarks.unchanged.worker", group, *names]
    worker = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    verdicts = [judge(json.loads(line)) for line in worker.stdout.splitlines() if line.startswith('{"name"')]
    assert {verdict.name for verdict in verdicts} == set(names)
    assert {verdict.name: verdict.detail for verdict in verdicts if verdict.result is not Result.IDENTICAL} == {}


def test_a_watch_that_disturbs_is_found() -> None:
    """The same machinery on a program that behaves differently as soon as somebody listens."""
    script = """
import json, sys, torch
from torch import nn
from benchmarks.unchanged.program import Group, learn
from benchmarks.unchanged.worker import trials

def disturbed():
    taps = sys.modules.get("undertow.probe.taps")
    if taps is not None and taps.installed():
        torch.rand(())
    return learn(nn.Linear(4, 2), (3, 4))

group = Group("own")
group.add("disturbed", disturbed)
group.add("calm", lambda: learn(nn.Linear(4, 2), (3, 4)))
group.add("absent", disturbed, "a_package_that_nobody_has")
group.add("broken", lambda: 1 / 0)
for trial in trials(group.programs):
    print(json.dumps(trial))
"""
    worker = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    verdicts = {(found := judge(json.loads(line))).name: found for line in worker.stdout.splitlines()}
    assert verdicts["own/disturbed"].result is Result.DIFFERS
    for part in ("weights", "gradients", "torch random", "returned", "stdout"):
        assert part in verdicts["own/disturbed"].detail
    assert "python random" not in verdicts["own/disturbed"].detail
    assert verdicts["own/calm"].result is Result.IDENTICAL
    assert verdicts["own/absent"].result is Result.MISSING
    assert verdicts["own/broken"].result is Result.BROKEN
    assert "ZeroDivisionError" in verdicts["own/broken"].detail
