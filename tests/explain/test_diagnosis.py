"""Ranking, localisation, remedies and the story."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from undertow.explain.diagnosis import diagnose, explained
from undertow.explain.divergence import ValueHistory
from undertow.explain.pages import page_of
from undertow.schema import (
    Diagnosis,
    Finding,
    Health,
    Layer,
    LayerKind,
    LayerTable,
    RunFacts,
    RunStatus,
    Severity,
    StepRange,
)
from undertow.schema.codes import CODES

NONE = StepRange(None, None, 0)
LAYERS = LayerTable.of(
    [Layer(f"{group}.weight", kind=LayerKind.WEIGHT, group=group) for group in ("first", "second", "head")]
)


def finding(code: str, severity: str = "critical", first_step: int = 5, **more: Any) -> Finding:
    facts: dict[str, Any] = {
        "layers": ("first.weight", "second.weight"), "detected_step": first_step, "last_step": 9, "ongoing": True,
        "confidence": 1.0, "summary": f"{code} happened.", **more,
    }  # fmt: skip
    return Finding(code, CODES[code], Severity(severity), first_step=first_step, **facts)


def of(*findings: Finding, events: tuple[dict[str, Any], ...] = (), **facts: Any) -> Diagnosis:
    return diagnose(
        findings, run="r", facts=RunFacts(undertow="0", **facts), layers=LAYERS, steps=StepRange(0, 9, 10),
        events=events, status="finished",
    )  # fmt: skip


def codes(diagnosis: Diagnosis) -> list[str]:
    return [found.code for found in diagnosis.findings]


def test_health_follows_the_worst_finding() -> None:
    assert of().health is Health.HEALTHY
    assert of().culprit is None
    assert of(finding("UPD004", "info")).health is Health.HEALTHY
    assert of(finding("UPD004", "info")).culprit is None
    assert of(finding("UPD003", "mild")).health is Health.MINOR
    assert of(finding("GRD003", "severe"), finding("UPD004", "info")).health is Health.PROBLEMS
    assert of(finding("NUM001")).health is Health.CRITICAL


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # Within a step: forward, backward, weights.
        ([("NUM003", 5), ("NUM001", 5), ("NUM002", 5)], ["NUM002", "NUM001", "NUM003"]),
        # A gradient first, then the weights it destroyed, then the loss of the next step.
        ([("NUM002", 6), ("NUM003", 5), ("NUM001", 5)], ["NUM001", "NUM003", "NUM002"]),
        # Weights that overflowed on finite gradients.
        ([("NUM001", 6), ("NUM002", 6), ("NUM003", 5)], ["NUM003", "NUM002", "NUM001"]),
        # Gradients never cleared are why the values overflowed in the end.
        ([("NUM002", 40), ("GRD007", 1)], ["GRD007", "NUM002"]),
        # An unrelated older fault does not hide the one that ends the run.
        ([("UPD003", 0), ("NUM002", 40)], ["NUM002", "UPD003"]),
        ([("UPD004", 0), ("GRD004", 3)], ["GRD004", "UPD004"]),
    ],
)
def test_causes_come_before_what_they_bring_about(given: list[tuple[str, int]], expected: list[str]) -> None:
    severities = {"GRD007": "severe", "UPD003": "severe", "UPD004": "info", "GRD004": "severe"}
    diagnosis = of(*(finding(code, severities.get(code, "critical"), step) for code, step in given))
    assert codes(diagnosis) == expected
    assert diagnosis.culprit is not None
    assert diagnosis.culprit.code == expected[0]


def event(**fields: Any) -> dict[str, Any]:
    return {"kind": "first_nonfinite", "step": 5, "where": "forward", "layer": "second", "operation": "Log", **fields}


def test_the_walk_over_the_graph_places_a_loss() -> None:
    origin = event(detail="3 of 64 values of 'self' are zero or negative")
    diagnosis = of(finding("NUM002", layers=()), finding("NUM001"), events=(origin,))
    assert codes(diagnosis) == ["NUM002", "NUM001"]
    assert diagnosis.culprit is not None
    assert diagnosis.culprit.layer == "second"
    assert "Log" in diagnosis.story
    assert "zero or negative" in diagnosis.findings[0].evidence[0].how


def test_an_operation_that_is_not_the_layers_own_is_that_of_the_module_behind_it() -> None:
    table = [
        Layer("score.weight", kind=LayerKind.WEIGHT, order=0, group="score"),
        Layer("score", kind=LayerKind.MODULE, order=1, group="score", module_type="Linear"),
        Layer("softmax", kind=LayerKind.MODULE, order=2, group="softmax", module_type="NaiveSoftmax"),
        Layer("head", kind=LayerKind.MODULE, order=4, group="head", module_type="Linear"),
        Layer("head.weight", kind=LayerKind.WEIGHT, order=4, group="head"),
    ]
    given = (finding("NUM002", layers=()), finding("NUM004", layers=("head",)))
    origin = event(layer="score", operation="Exp")

    def named(origin: dict[str, Any], layers: list[Layer]) -> dict[str, tuple[str, ...]]:
        return {one.code: one.layers for one in explained(given, LayerTable.of(layers), (origin,))}

    assert named(origin, table) == {"NUM004": ("softmax", "head"), "NUM002": ("softmax",)}
    # Its own operation, and a module whose operations are known.
    assert named(event(layer="score", operation="Addmm"), table)["NUM002"] == ("score",)
    table[2] = table[2].replace(module_type="ReLU")
    assert named(origin, table) == {"NUM004": ("score", "head"), "NUM002": ("score",)}
    # The user's own module behind that one.
    gate = Layer("gate", kind=LayerKind.MODULE, order=3, group="gate", module_type="LogGate")
    assert named(origin, [*table, gate])["NUM002"] == ("gate",)
    # A layer behind the module that is named explains nothing.
    assert named(event(layer="head", operation="Addmm"), table)["NUM004"] == ("head",)


def test_what_the_first_layer_is_given_was_made_by_the_users_module_before_it() -> None:
    table = [
        Layer("energy", kind=LayerKind.MODULE, group="energy", module_type="Energy"),
        Layer("head", kind=LayerKind.MODULE, order=1, group="head", module_type="Linear"),
        Layer("head.weight", kind=LayerKind.WEIGHT, order=0, group="head"),
    ]
    given = (finding("NUM002", layers=()),)

    def named(detail: str, layers: list[Layer]) -> tuple[str, ...]:
        origin = event(layer="head", operation="Addmm", detail=f"3 of 64 values of '{detail}' are not finite")
        return explained(given, LayerTable.of(layers), (origin,))[0].layers

    assert named("mat1", table) == ("energy",)
    assert named("result", table) == ("head",)
    assert named("mat1", [table[0].replace(module_type="Flatten"), *table[1:]]) == ("head",)


def test_an_event_of_another_step_places_nothing() -> None:
    assert of(finding("NUM002", layers=()), events=(event(step=2),)).findings[0].layers == ()


def test_a_weight_that_was_bad_before_the_step_is_the_cause() -> None:
    origin = event(operation="Addmm", detail="64 of 64 values of 'mat2' are not finite")
    given = (finding("NUM002", layers=()), finding("NUM001"), finding("NUM003"))
    diagnosis = of(*given, events=(origin,))
    assert codes(diagnosis)[0] == "NUM003"
    assert diagnosis.culprit is not None
    assert diagnosis.culprit.layer == "second.weight"
    # An activation that is not finite is no reason to blame the weight.
    origin = event(operation="Addmm", detail="64 of 64 values of 'mat1' are not finite")
    assert codes(of(*given, events=(origin,)))[0] == "NUM002"


def test_damaged_events_are_passed_over() -> None:
    broken = ({"kind": "first_nonfinite"}, {"kind": 3}, {}, event(layer=None, where=None, detail=None))
    assert of(finding("NUM002", layers=()), events=broken).findings[0].layers == ()


def sentences(story: str) -> list[str]:
    return re.split(r"(?<=[.!?]) (?=[A-Z])", story)


@pytest.mark.parametrize(
    "diagnosis",
    [
        of(), of(finding("UPD004", "info")), of(finding("UPD003", "mild")),
        of(finding("NUM001"), finding("NUM003")), of(finding("GRD003", "severe")),
    ],
)  # fmt: skip
def test_the_story_has_three_sentences(diagnosis: Diagnosis) -> None:
    assert len(sentences(diagnosis.story)) == 3, diagnosis.story
    assert diagnosis.story.endswith(".")


@pytest.mark.parametrize(
    ("facts", "status", "reason"),
    [
        ({}, "finished", "optimizer of the watched model ever took a step"),
        ({}, "running", "only begun"),
        ({"steps_seen": 3, "frames_dropped": 3}, "finished", "the disk is full"),
        ({"reasons": ["the model has no parameters"]}, "finished", "he model has no parameters"),
    ],
)
def test_a_run_without_steps_says_why(facts: dict[str, Any], status: str, reason: str) -> None:
    diagnosis = diagnose(
        [], run="r", facts=RunFacts(**facts), layers=LayerTable(), steps=StepRange(None, None, 0), status=status
    )
    assert diagnosis.health is None
    assert any(reason in text for text in diagnosis.coverage.reasons)
    assert reason in diagnosis.story
    assert len(sentences(diagnosis.story)) == 3


def test_a_script_that_failed_before_the_first_step_is_told_both() -> None:
    facts = RunFacts(status=RunStatus.FAILED, message="exit code 5")
    diagnosis = diagnose([], run="r", facts=facts, layers=LayerTable(), steps=NONE, status="failed")
    assert diagnosis.coverage.reasons == (
        "no optimizer of the watched model ever took a step",
        "the script ended with exit code 5",
    )
    assert "ever took a step, and the script ended with exit code 5." in diagnosis.story
    assert len(sentences(diagnosis.story)) == 3


@pytest.mark.parametrize("message", ["Nothing fits 'x*'. Layers are named like: a, b", "Undertow stepped aside (oops)"])
@pytest.mark.parametrize("steps", [NONE, StepRange(0, 3, 4)])
def test_a_run_that_detached_says_so_first(message: str, steps: StepRange) -> None:
    facts = RunFacts(status=RunStatus.DETACHED, message=message, reasons=["something smaller"])
    diagnosis = diagnose([], run="r", facts=facts, layers=LAYERS, steps=steps, status="detached")
    assert f"{message}." in diagnosis.story
    assert "optimizer of the watched model" not in diagnosis.story
    assert len(sentences(diagnosis.story)) <= 3
    assert message in diagnosis.coverage.reasons


@pytest.mark.parametrize("steps", [NONE, StepRange(0, 3, 4)])
def test_a_damaged_run_is_not_called_healthy(steps: StepRange) -> None:
    def judged(*findings: Finding) -> Diagnosis:
        lost = ("segments/a.arrows is missing", "segments/b.arrows is left out: rubbish")
        facts = RunFacts(steps_seen=4)
        return diagnose(findings, run="r", facts=facts, layers=LAYERS, steps=steps, status="finished", problems=lost)

    diagnosis = judged()
    assert diagnosis.health is None
    assert "segments/a.arrows is missing (and 1 more)." in diagnosis.story
    assert "optimizer.step()" not in diagnosis.story
    assert diagnosis.coverage.reasons[0] == "segments/a.arrows is missing"
    assert not any("recorded" in reason for reason in diagnosis.coverage.reasons)
    if steps.recorded:
        assert judged(finding("NUM001")).health is Health.CRITICAL


def history(*loss: float, weights: tuple[float, ...] = ()) -> ValueHistory:
    largest = np.full(len(loss), np.nan)
    largest[: len(weights)] = weights
    return ValueHistory(np.arange(len(loss)), np.array(loss), largest)


@pytest.mark.parametrize("code", ["NUM001", "NUM002", "NUM003"])
@pytest.mark.parametrize(
    ("numbers", "diverged"),
    [
        (history(2.0, 1.0, 30.0, 1e5, 1e20, np.inf), True),
        (history(2.0, 1.0, 1e9, 1e5, np.nan, np.nan), True),  # a dip on the way up
        (history(2.0, 1.0, 0.9, 0.8, 0.7, np.nan), False),
        (history(2.0, 1e-5, 1e-6, 1e-6, 0.5, np.nan), False),  # a spike, but no more than at the start
        (history(2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1e9), False),  # what came after says nothing
        (history(2.0, *[np.nan] * 5, weights=(1e30,)), True),
        (history(2.0, *[np.nan] * 5, weights=(0.3, 0.4, 400.0)), True),
        (history(2.0, *[np.nan] * 5, weights=(0.3, 0.4, 0.4)), False),
        (history(*[np.nan] * 6), False),
    ],
)
def test_values_that_ran_away_ask_for_a_lower_rate_first(code: str, numbers: ValueHistory, diverged: bool) -> None:
    found = diagnose(
        [finding(code)], run="r", facts=RunFacts(), layers=LAYERS, steps=StepRange(0, 9, 10), history=numbers
    )
    (only,) = found.findings
    assert (only.remedies[0].id == "lower-the-learning-rate") == diverged
    assert ("diverged" in only.evidence[0].how if only.evidence else False) == diverged
    assert ("diverged" in found.story) == diverged
    assert len({remedy.id for remedy in only.remedies}) == len(only.remedies)
    assert len(sentences(found.story)) == 3


def test_every_remedy_is_one_sentence() -> None:
    assert all(len(sentences(remedy.what)) == 1 for code in CODES for remedy in page_of(code).remedies)


def test_overhead_that_is_not_a_number_is_unknown() -> None:
    overhead = of(overhead_fraction=float("nan"), bytes_per_step=10.0, overhead_seconds_per_step=0.002).overhead
    assert (overhead.fraction_of_step, overhead.bytes_per_step, overhead.milliseconds_per_step) == (None, 10.0, 2.0)


def test_remedies_fit_the_case() -> None:
    def ids(found: Finding) -> list[str]:
        return [remedy.id for remedy in of(found).findings[0].remedies]

    assert ids(finding("NUM001", variant="nonfinite-gradient"))[0] == "guard-the-operation"
    assert ids(finding("NUM005", "severe", variant="scaler-finds-no-scale")) == ["smaller-loss-scale"]
    assert ids(finding("NUM001", "info", variant="scaler-skips-steps")) == []
    assert ids(finding("GRD003", variant="graph-cut"))[0] == "remove-the-cut"
    assert ids(finding("GRD003", variant="unused-layer")) == ["drop-unused-parameters"]
    assert ids(finding("UPD003", "severe", variant="missing-from-optimizer"))[0] == "give-it-to-the-optimizer"
    assert ids(finding("GRD007", "severe")) == ["clear-gradients"]


def test_pages() -> None:
    for code in CODES:
        page = page_of(code)
        assert page.exists
        if page.exists:
            assert [title for title, _ in page.sections] == [
                "What it sees", "Why it is bad", "When it is wrong", "References",
            ]  # fmt: skip
            assert all(text for _, text in page.sections)
        else:
            assert "no rule" in page.summary
    assert page_of("zero-gradient").code == "GRD004"
    assert page_of(" grd004 ").code == "GRD004"
