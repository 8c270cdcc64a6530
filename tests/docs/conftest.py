"""A folder as a reader of the docs has it after the quickstart: the examples, an environment, and one run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.docs.pages import ROOT
from tests.docs.shell import call


@pytest.fixture(scope="session")
def after_the_quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reader")
    (folder / "pyproject.toml").write_text("", encoding="utf-8")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__", "runs"))
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/activate").write_text("", encoding="utf-8")  # the tests' own environment is already active
    done = call(folder, "undertow", "run", "examples/plain_loop.py")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def reader(after_the_quickstart: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "reader"
    shutil.copytree(after_the_quickstart, folder, symlinks=True)
    return folder
