"""What pages say of measured false alarms."""

from __future__ import annotations

import pytest

from undertow.detect import false_alarms
from undertow.detect.engine.registry import conditions
from undertow.explain.pages import page_of
from undertow.schema.codes import CODES


def test_every_rule_states_how_often_it_was_wrong() -> None:
    for rule in conditions():
        assert dict(page_of(rule.code).sections)["When it is wrong"].endswith(false_alarms.sentence(rule.code))


def test_only_of_codes_and_not_of_more_runs_than_there_were() -> None:
    assert set(false_alarms.ALARMED_RUNS) <= set(CODES)
    assert all(0 < runs <= false_alarms.RUNS for runs in false_alarms.ALARMED_RUNS.values())


@pytest.mark.parametrize(
    ("runs", "beginning"),
    [(0, "No false alarm in 534 runs"), (1, "A false alarm in 1 of 534 runs"), (3, "False alarms in 3 of 534 runs")],
)
def test_in_words(runs: int, beginning: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(false_alarms, "ALARMED_RUNS", {"OPT001": runs} if runs else {})
    assert false_alarms.sentence("OPT001").startswith(beginning)


def test_the_rate_left_open_is_that_of_wilson() -> None:
    assert false_alarms._upper(0, 534) == pytest.approx(0.00714, abs=2e-5)
    assert false_alarms._upper(3, 534) == pytest.approx(0.01639, abs=2e-4)
    assert false_alarms._upper(534, 534) == pytest.approx(1.0)
