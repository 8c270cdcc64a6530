"""`undertow report`: text that fits, and JSON exactly as the contract has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from undertow.cli import group


def invoke(*arguments: str | Path) -> str:
    result = CliRunner().invoke(group, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_the_text_fits_one_screen(sick: Path) -> None:
    lines = invoke("report", sick).splitlines()
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 80
    assert all(line == line.rstrip() for line in lines)


def test_the_json_has_every_object(sick: Path, empty: Path) -> None:
    for folder in (sick, empty):
        document = json.loads(invoke("report", folder, "--json"), parse_constant=pytest.fail)
        assert set(document) >= {
            "undertow", "run", "steps", "health", "culprit", "story", "findings", "overhead", "coverage",
            "complete", "status", "message",
        }  # fmt: skip
        assert set(document["steps"]) == {"first", "last", "recorded"}
        assert set(document["overhead"]) >= {"fraction_of_step", "bytes_per_step"}
        assert set(document["coverage"]) == {"layers_watched", "layers_skipped", "reasons", "streams", "blind"}
        for finding in document["findings"]:
            assert set(finding) == {
                "code", "name", "severity", "layers", "first_step", "detected_step", "last_step", "ongoing",
                "confidence", "summary", "evidence", "remedies", "follows_from", "variant", "source",
            }  # fmt: skip
            assert all(set(e) == {"quantity", "layer", "value", "expected", "how"} for e in finding["evidence"])
            assert all(set(r) == {"id", "what", "how", "risk", "measured", "when_not"} for r in finding["remedies"])


def test_json_of_a_sick_run(sick: Path) -> None:
    document = json.loads(invoke("report", sick, "--json"))
    assert document["health"] == "critical"
    assert document["culprit"]["layer"] == "second.weight"
    assert document["steps"] == {"first": 0, "last": 11, "recorded": 12}
    assert [finding["code"] for finding in document["findings"]] == ["NUM001", "NUM003", "UPD004"]


def test_json_of_a_run_without_steps(empty: Path) -> None:
    document = json.loads(invoke("report", empty, "--json"))
    assert document["health"] is None
    assert document["culprit"] is None
    assert document["steps"] == {"first": None, "last": None, "recorded": 0}
    assert document["coverage"]["reasons"]


def test_names_and_latest(sick: Path, healthy: Path) -> None:
    by_name = invoke("report", "sick", "--json")
    assert by_name == invoke("report", sick, "--json")
    (sick.parent / "latest").symlink_to("healthy")
    assert json.loads(invoke("report", "latest", "--json"))["health"] == "healthy"


def test_latest_without_a_link_is_the_newest(sick: Path) -> None:
    assert json.loads(invoke("report", "latest", "--json"))["health"] == "critical"
