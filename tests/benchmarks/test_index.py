"""The commands of the Makefile exist, and every result that is kept is listed."""

from __future__ import annotations

import importlib.util
import re

import pytest

from benchmarks import ROOT

COMMANDS = sorted(set(re.findall(r"-m (benchmarks\.[\w.]+)", (ROOT / "Makefile").read_text())))


@pytest.mark.parametrize("command", COMMANDS)
def test_what_make_calls_is_there(command: str) -> None:
    assert importlib.util.find_spec(command) is not None
    folder = ROOT.joinpath(*command.split("."))
    assert (folder / "__main__.py").exists() or folder.with_suffix(".py").exists()


def test_every_benchmark_has_a_target() -> None:
    folders = {path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py")}
    assert folders == {command.split(".")[1] for command in COMMANDS}
    assert len(folders) >= 9


def test_every_result_is_in_the_index() -> None:
    results = ROOT / "benchmarks" / "results"
    linked = set(re.findall(r"\(([\w.-]+\.txt)\)", (results / "README.md").read_text()))
    assert linked == {path.name for path in results.glob("*.txt")}
