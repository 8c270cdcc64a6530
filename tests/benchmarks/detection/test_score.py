"""The judge of the judges: credit, ranking, layers, waits and intervals, on verdicts made by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from benchmarks.detection.baselines import autotrainer, loss_only, nan_only, original, sagemaker
from benchmarks.detection.score import Verdict, harm, score, wilson
from undertow.demos.case import Case
from undertow.schema import Layer, LayerKind, LayerTable


def _truth(**facts: Any) -> Case:
    return Case("case", "", 100, lambda steps, seed, fault: {}, **{"codes": ("GRD003", "UPD003"), **facts})


def _report(code: str, step: int = 5, layer: str = "encoder.first", **facts: Any) -> dict[str, Any]:
    return {"codes": [code], "step": step, "layers": [layer], "alarm": True, "confidence": 0.9, **facts}


def test_an_alarm_that_the_twin_raises_too_is_not_credited() -> None:
    told = [_report("GRD003")]
    assert Verdict(_truth(), told, []).alarm == told[0]
    assert Verdict(_truth(), told, told).alarm is None
    assert Verdict(_truth(), told, [_report("GRD003", layer="head")]).alarm == told[0]


def test_an_alarm_before_the_fault_is_early_and_finds_nothing() -> None:
    verdict = Verdict(_truth(onset=40), [_report("GRD003", step=39)], [])
    assert verdict.early
    assert verdict.alarm is None
    assert verdict.wait == math.inf
    assert Verdict(_truth(onset=40), [_report("GRD003", step=47)], []).wait == 7


def test_only_the_first_finding_counts_as_the_answer() -> None:
    verdict = Verdict(_truth(layers=frozenset({"encoder"})), [_report("ACT001", layer="head"), _report("UPD003")], [])
    assert not verdict.is_right_first
    assert verdict.is_right_somewhere
    assert not verdict.names_the_layer
    assert verdict.is_confidently_wrong
    assert not Verdict(_truth(), [_report("ACT001", confidence=0.5)], []).is_confidently_wrong


def test_a_remark_is_no_alarm() -> None:
    remark = Verdict(_truth(layers=frozenset({"encoder"})), [_report("GRD003", alarm=False)], [])
    assert remark.alarm is None
    assert not remark.is_right_first
    assert not remark.names_the_layer


def test_cases_count_by_most_of_their_seeds_and_misses_wait_for_ever() -> None:
    truths = {"case": _truth(twin="twin"), "twin": Case("validation", "twin", 100, lambda seed: {})}
    told = [[_report("GRD003", step=1)], [_report("GRD003", step=3)], []]
    runs = {
        "case": [{"seed": seed, "judges": {"it": said}, "recorded": 100} for seed, said in enumerate(told)],
        "twin": [{"seed": 0, "judges": {"it": [_report("OPT002"), _report("X", alarm=False)]}, "recorded": 500}],
    }
    result = score("it", truths, runs, {"case"})
    assert result.cases("alarm") == (1, 1)
    assert result.waits() == (3, math.inf)
    assert result.false_runs() == (1, 1)
    assert result.noise() == 2.0


def test_a_fault_must_do_more_than_seeds_do() -> None:
    truth = _truth(bites="accuracy")

    def runs(*values: float) -> list[dict[str, Any]]:
        return [{"metrics": {"accuracy": value}} for value in values]

    assert harm(truth, runs(0.5, 0.5, 0.5), runs(0.9, 0.91, 0.9)) == pytest.approx((0.5, 0.9033, True), abs=1e-3)
    unclear = harm(truth, runs(0.85, 0.9, 0.8), runs(0.9, 0.7, 0.99))
    assert unclear is not None
    assert not unclear[2]
    assert harm(truth, runs(0.5), runs(0.9)) is None


def test_wilson_interval_against_published_values() -> None:
    low, high = wilson(0, 24)
    assert low == 0.0
    assert high == pytest.approx(0.138, abs=1e-3)
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-3)


class _Numbers:
    """A run of two layers, by its numbers; what is not given was not measured."""

    def __init__(self, loss: list[float], **quantities: list[list[float]]) -> None:
        self.steps = list(range(len(loss)))
        self.layers = LayerTable.of(
            Layer(path, kind=LayerKind.WEIGHT, order=place)
            for place, path in enumerate(["first.weight", "last.weight"])
        )
        self.quantities, self.scalar_names = list(quantities), ["loss"]
        self._loss, self._quantities = np.array(loss), {name: np.array(rows) for name, rows in quantities.items()}

    def scalars(self, name: str) -> Any:
        return self._loss

    def matrix(self, name: str) -> Any:
        return self._quantities[name]


def _said(judge: Any, run: _Numbers) -> list[tuple[str, int, list[str]]]:
    from benchmarks.detection.baselines import Numbers

    with np.errstate(all="ignore"):
        return [(report["codes"][0], report["step"], report["layers"]) for report in judge(Numbers(run))]


def test_baselines_speak_at_their_published_thresholds() -> None:
    falling = list(np.linspace(2.0, 0.1, 60))
    small = _Numbers(falling, gradient_norm=[[1e-6, 1.0]] * 60, gradient_mean_abs=[[1e-8, 1e-3]] * 60,
                     gradient_zero_fraction=[[0.0, 0.0]] * 60)  # fmt: skip
    assert _said(original, small) == [("GRD001", 9, ["first.weight"])]
    assert _said(autotrainer, small) == [("GRD001", 9, ["first.weight"])]
    assert _said(sagemaker, small) == [("GRD001", 0, ["first.weight"])]
    assert _said(loss_only, small) == []
    assert _said(loss_only, _Numbers([2.0] * 60)) == [("OPT005", 49, [])]
    broken = _Numbers([1.0, math.inf, math.inf], gradient_nonfinite_count=[[0, 0], [0, 4], [4, 4]])
    assert _said(nan_only, broken) == [("NUM001", 1, []), ("NUM001", 1, ["last.weight"])]
