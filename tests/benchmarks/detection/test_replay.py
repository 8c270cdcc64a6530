"""A case recorded once can be judged again and again, compared, and judged without one of its conditions."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import ROOT
from benchmarks.detection.ablation import outcome_without
from benchmarks.detection.cases import load
from benchmarks.detection.difference import compare, read
from benchmarks.detection.record import folder_of, record
from benchmarks.detection.recorded import Replayed, recorded_runs, replay
from benchmarks.detection.replay import write

CASE = "forgotten_detach"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    cases = load("development")
    for name in (CASE, cases[CASE].twin):
        record(cases[name], folder_of(folder, cases[name]))
    return folder


@pytest.fixture(scope="module")
def replayed(runs: Path) -> list[Replayed]:
    return [replay(folder, ablate=True) for folder in recorded_runs(runs)]


def test_what_was_recorded_is_judged_from_its_folder_alone(replayed: list[Replayed]) -> None:
    sick, twin = replayed
    assert (sick["case"], twin["case"]) == (CASE, f"{CASE} (twin)")
    assert sick["judges"]["Undertow"][0]["codes"] == ["GRD003"]
    assert not any(report["alarm"] for report in twin["judges"]["Undertow"])


def test_a_condition_matters_where_leaving_it_out_loses_the_case(replayed: list[Replayed]) -> None:
    assert outcome_without(replayed, None).found == {CASE}
    first = replayed[0]["diagnosis"]["findings"][0]
    assert outcome_without(replayed, (first["code"], first["variant"])).first == set()
    assert outcome_without(replayed, ("GRD003", "no such condition")).first == {CASE}


def test_two_versions_are_told_apart(
    replayed: list[Replayed], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = copy.deepcopy(replayed)
    write(tmp_path / "before", replayed)
    finding = changed[0]["diagnosis"]["findings"][0]
    finding["summary"] = "Said better."
    write(tmp_path / "words", changed)
    finding["variant"] = "called-otherwise"
    write(tmp_path / "renamed", changed)
    finding["first_step"] += 1
    write(tmp_path / "other", changed)
    before, words, renamed, other = (read(tmp_path / name) for name in ("before", "words", "renamed", "other"))
    assert compare(before, before) == 0
    assert compare(before, words) == 0
    assert "1 the same, 1 in other words, 0 judged differently" in capsys.readouterr().out
    assert compare(before, renamed) == 0
    assert "is now 'called-otherwise'" in capsys.readouterr().out
    assert compare(before, other) == 1
    assert "GRD003.first_step" in capsys.readouterr().out


def test_the_command_needs_no_torch(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('replaying must not need torch')")
    script = ROOT / "benchmarks" / "detection" / "replay.py"
    done = subprocess.run(
        [sys.executable, str(script), "--runs", str(runs), "--write", str(tmp_path / "written"), "--cases"],
        capture_output=True, text=True, check=False, env={"PYTHONPATH": str(tmp_path), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "cases found" in done.stdout
    assert len((tmp_path / "written").read_text().splitlines()) == 2
