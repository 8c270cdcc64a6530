"""What stands beside a diagnosis never contradicts it: every verdict word of a run is a finding's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import write
from tests.detect.building import Training

from undertow.components.run_verdicts import UNSTABLE
from undertow.run import Run
from undertow.show.notebook.cards import dynamics_card, flow_card
from undertow.show.report.sections import SECTIONS, report_record
from undertow.views import page_documents
from undertow.views.flow_rows import flow_rows
from undertow.views.page_documents import weights

NOISE = 0.01 * np.random.default_rng(0).normal(size=600)
FADING = {name: 10.0 ** (place - 7) for place, name in enumerate("abcdef")}


def healthy() -> Training:
    return losses(2.3 * np.exp(-np.arange(300) / 80) + 0.3)


def looks_bad() -> Training:
    """By the original's limits a layer vanishes and another explodes; the diagnosis has no objection."""
    return Training().run(30).run(60, gradient_norm={"second": 1e-12, "third": 5000.0})


def dead_layer() -> Training:
    hit = {"gradient_norm": {"second": 0.0}, "stepped_gradient_norm": {"second": 0.0}}
    return Training().run(30).run(100, **hit, gradient_zero_fraction={"second": 1.0})


def vanishing() -> Training:
    return Training(*FADING).run(60, gradient_norm=FADING, gradient_rms=FADING, update_ratio=FADING, update_norm=FADING)


def nonfinite() -> Training:
    return Training().run(30).run(20, gradient_nonfinite_count={"second": 4.0}, gradient_norm={"second": np.nan})


def plateau() -> Training:
    falling = np.geomspace(2.0, 1.0, 150)
    return losses(np.concatenate([falling, np.full(350, 1.0)]), gradient_cosine=0.8)


def flat_but_fine() -> Training:
    """By the original's limits a plateau: the gradients are noise, so the diagnosis has no objection."""
    return losses(np.concatenate([np.geomspace(2.0, 1.0, 150), np.full(350, 1.0)]), gradient_cosine=0.02)


def overfitting() -> Training:
    training, steps = Training(), np.arange(600)
    fit = 2 * np.exp(-steps / 100) + 0.1 + NOISE
    for step in steps:
        later = {} if step % 10 else {"val_loss": float(fit[step] + 0.2 + max(0, step - 150) * 0.004)}
        training.run(1, scalars={"loss": float(fit[step]), **later})
    return training


def diverging() -> Training:
    return losses(1 + 0.05 * np.arange(200))


def losses(values: np.ndarray, **changes: Any) -> Training:
    training = Training()
    for value, noise in zip(values, NOISE):
        training.run(1, scalars={"loss": float(value + noise)}, **changes)
    return training


CASES: dict[Callable[[], Training], str | None] = {
    healthy: None,
    looks_bad: None,
    flat_but_fine: None,
    dead_layer: "GRD004",
    vanishing: "GRD001",
    nonfinite: "NUM001",
    plateau: "OPT002",
    overfitting: "OPT006",
    diverging: "OPT001",
}


@pytest.fixture(params=CASES, ids=lambda case: case.__name__)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Run, str | None]:
    return Run(write(tmp_path / "run", request.param())), CASES[request.param]


def layers_of(report: dict[str, Any], *codes: str) -> set[str]:
    return {layer for one in report["findings"] if one["code"] in codes for layer in one["layers"]}


def test_sections_say_what_the_findings_say(case: tuple[Run, str | None]) -> None:
    run, expected = case
    report = report_record(run.diagnose(), run, SECTIONS)
    ongoing = {one["code"] for one in report["findings"] if one["ongoing"]}
    assert expected is None or expected in ongoing
    flow, dynamics, details = report["flow"], report["dynamics"], report["dynamics"]["details"]
    assert set(flow["dead"]["first"]) <= layers_of(report, "GRD003", "GRD004") | {"second"}  # the module of dead ones
    assert set(flow["vanishing"]["first"]) == layers_of(report, "GRD001")
    assert set(flow["exploding"]["first"]) == layers_of(report, "GRD002")
    assert set(flow["nonfinite"]["first"]) <= layers_of(report, "NUM001")
    assert not flow["bottlenecks"]["count"] or ongoing & {"GRD001", "GRD003", "GRD004", "ACT001", "ACT002"}

    words = {"healthy": "Healthy", "minor": "Warning", "problems": "Warning", "critical": "Critical"}
    assert dynamics["health"] == words[report["health"]]
    named = {layer for one in report["findings"] if one["severity"] != "info" for layer in one["layers"]}
    ill = {
        name for name, one in details["layer_details"].items() if one["health_metrics"]["overall_health"] != "Healthy"
    }
    assert ill == named
    assert (dynamics["is_plateau"] is True) == ("OPT002" in ongoing)
    assert (dynamics["learning_phase"] == "Plateau") == ("OPT002" in ongoing)
    assert (dynamics["learning_phase"] == "Overfitting") == ("OPT006" in ongoing)
    assert (dynamics["convergence_trend"] == "Diverging") == bool(ongoing & {"OPT001", "NUM002"})
    assert (dynamics["convergence_trend"] == "Oscillating") == ("OPT004" in ongoing)
    assert (dynamics["stability_trend"] == "Degrading") == bool(ongoing & set(UNSTABLE))
    assert (dynamics["short_term_outlook"] == "Deteriorating") == bool(ongoing & set(UNSTABLE))
    advice = {remedy["what"] for one in report["findings"] for remedy in one["remedies"]}
    assert {action for one in dynamics["priorities"] for action in one["actions"]} <= advice

    about_weights = {one["code"] for one in report["findings"] if one["code"].startswith(("WGT", "NUM003", "UPD00"))}
    assert {issue["code"] for issue in report["weights"]["issues"]} <= about_weights


def test_pages_pictures_and_cards_say_it_too(case: tuple[Run, str | None]) -> None:
    run, expected = case
    page = page_documents.flow(run)
    assert bool(page["vanishing_regions"]) == (expected == "GRD001")
    assert bool(page["dead_zones"]) == (expected == "GRD004")
    assert page["exploding_regions"] == []
    notes = {note for row in flow_rows(run, (0, int(run.steps[-1])), 40, 40).rows for note in row.notes}
    assert notes <= {
        "GRD001": {"vanishing", "bottleneck"},
        "GRD004": {"dead", "bottleneck"},
        "NUM001": {"not finite"},
    }.get(expected or "", set())
    assert {issue["code"] for issue in weights(run)["issues"]} <= {one.code for one in run.findings}
    shown = flow_card(run.flow()) + dynamics_card(run.dynamics())
    if expected is None:
        for word in ("Warning", "Critical", "Plateau", "Overfitting", "Diverging", "Degrading"):
            assert word not in shown
