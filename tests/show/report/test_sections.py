"""Flow, dynamics and weights in the report: as JSON whose form is fixed, and as text."""

from __future__ import annotations

import json
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.cli.conftest import write
from tests.detect.building import Training

from undertow.cli import group
from undertow.run import Run
from undertow.schema import summaries
from undertow.show.report import sections
from undertow.show.report.sections import NEWEST, SECTIONS, report_record

PAGE = Path(__file__).parents[3] / "docs/json.md"
RECORDS = [one for one in vars(summaries).values() if is_dataclass(one) and isinstance(one, type)]
CALM = {"weight_drift": 0.1, "weight_cosine_to_start": 0.99, "weight_std": 0.1, "weight_mean": 0.0}


def report(folder: Path, *options: str) -> str:
    result = CliRunner().invoke(group, ["report", str(folder), *options], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result.stdout


# Gradients that fade over depth, and updates with them.
FADING = {name: 10.0 ** (place - 7) for place, name in enumerate("abcdef")}
VANISHING = dict.fromkeys(("gradient_norm", "gradient_rms", "update_ratio", "update_norm"), FADING)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write(tmp_path / "run", Training(*FADING).run(50, **CALM, **VANISHING))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_the_page_defines_every_field(record: type) -> None:
    part = PAGE.read_text(encoding="utf-8").partition("## Flow, dynamics and weights")[2]
    assert {field.name for field in fields(record)} <= set(re.findall(r"`(\w+)`", part))


def test_summaries_are_always_there(run: Path) -> None:
    document = json.loads(report(run, "--json"), parse_constant=pytest.fail)
    assert list(document)[-3:] == list(SECTIONS)
    assert document["flow"]["steps"] == {"first": 0, "last": 49, "recorded": 50}
    assert document["flow"]["vanishing"] == {"count": 3, "first": ["a.weight", "b.weight", "c.weight"]}
    assert document["dynamics"]["health"] == "Warning"
    assert document["dynamics"]["layer_health"] == {"Healthy": 9, "Warning": 3, "Critical": 0, "Unknown": 0}
    assert document["dynamics"]["priorities"][0]["target"] == "a.weight"
    first_remedy = document["findings"][0]["remedies"][0]["what"]
    assert document["dynamics"]["priorities"][0]["actions"] == [first_remedy]
    assert document["weights"]["drift"]["relative"] == pytest.approx(0.1)
    assert all("details" not in document[name] for name in SECTIONS)


def test_in_full_on_request(run: Path) -> None:
    document = json.loads(report(run, "--json", "--sections", "weights, flow"), parse_constant=pytest.fail)
    assert list(document["flow"]["details"]["layers"]) == list(Run(run).layers.parameters)
    assert [tensor["path"] for tensor in document["weights"]["details"]["tensors"]] == Run(run).layers.parameters
    assert "details" not in document["dynamics"]
    document = json.loads(report(run, "--json", "--sections", "dynamics"))
    assert document["dynamics"]["details"]["layer_details"]["a.weight"]["health_metrics"]["risk_factors"]


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_runs_of_few_steps(tmp_path: Path, steps: int) -> None:
    folder = write(tmp_path / "short", Training().run(steps) if steps else Training())
    document = json.loads(report(folder, "--json"), parse_constant=pytest.fail)
    for name in SECTIONS:
        assert document[name] is not None, document["coverage"]["reasons"]
    assert document["weights"]["health"] == ("healthy" if steps else None)
    assert "Flow" in report(folder, "--sections", ",".join(SECTIONS))


def test_a_summary_looks_at_the_newest_steps(tmp_path: Path) -> None:
    training = Training().run(40, gradient_norm=500.0).run(NEWEST)
    folder = write(tmp_path / "long", training)
    document = json.loads(report(folder, "--json"))
    assert document["flow"]["steps"] == {"first": 40, "last": NEWEST + 39, "recorded": NEWEST}
    whole = json.loads(report(folder, "--json", "--sections", "flow"))
    assert whole["flow"]["steps"]["recorded"] == NEWEST + 40


def test_text(run: Path) -> None:
    text = report(run, "--sections", "flow,dynamics,weights")
    assert [line for line in text.splitlines() if line in ("Flow", "Dynamics", "Weights")] == [
        "Flow", "Dynamics", "Weights",
    ]  # fmt: skip
    assert re.search(r"vanishing +a.weight, b.weight, c.weight", text)
    assert re.search(r"drift +0.1 of the norm since before step 0; most: a.bias 0.1", text)
    assert "Flow" not in report(run)


def test_wrong_names_are_refused(run: Path) -> None:
    for options, message in (
        (["--sections", "flows"], "There are: flow, dynamics, weights"),
        (["--sections", "flow", "--markdown"], "not with --markdown"),
    ):
        result = CliRunner().invoke(group, ["report", str(run), *options])
        assert (result.exit_code, message in result.stderr) == (2, True)


def test_a_failing_analysis_does_not_take_the_report_with_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Run(run)

    def broken(*_: object) -> Any:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(sections, "flow_of_run", broken)
    document = report_record(opened.diagnose(), opened)
    assert document["flow"] is None
    assert "flow could not be analysed: no such luck" in document["coverage"]["reasons"]
    assert document["weights"] is not None
