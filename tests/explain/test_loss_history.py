"""What a training tolerates while it learns is not what breaks it later; and what costs most comes first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.explain.test_causes import found

from undertow.detect.features.initial_scales import BadStart
from undertow.explain.loss_history import LossHistory
from undertow.explain.ranking import Ranking
from undertow.explain.user_program import Program
from undertow.schema import Evidence, Finding, LayerTable


def history(*parts: tuple[float, float, int]) -> LossHistory:
    losses = np.concatenate([np.geomspace(start, end, count) for start, end, count in parts])
    return LossHistory.of(np.arange(len(losses)), losses)


LEARNED_THEN_BROKEN = history((2.3, 0.2, 300), (3.0, 2.5, 100))
NEVER_LEARNED = history((2.3, 2.2, 400))


def first(losses: LossHistory, *findings: Finding) -> list[tuple[str, str | None]]:
    ranking = Ranking(findings, losses=losses)
    linked = ranking.linked(findings)
    return [(linked[place].code, linked[place].follows_from) for place in ranking.in_order()]


def test_a_weakness_that_the_training_learned_with_is_no_cause_of_what_broke_it() -> None:
    weakness, fault = found("WGT003", 0, 0, "moderate"), found("ACT001", 300, 310)
    assert first(LEARNED_THEN_BROKEN, weakness, fault) == [("ACT001", None), ("WGT003", None)]
    assert first(NEVER_LEARNED, weakness, fault) == [("WGT003", None), ("ACT001", "WGT003")]


def test_a_value_that_is_not_finite_comes_first_where_all_was_well_until_then() -> None:
    weakness, fault = found("DAT001", 0, 0), found("NUM002", 300, 300, "critical")
    assert first(LEARNED_THEN_BROKEN, weakness, fault)[0] == ("NUM002", None)
    assert first(NEVER_LEARNED, weakness, fault)[0] == ("DAT001", None)


def test_a_cause_that_begins_with_the_harm_stays_one() -> None:
    jump, lost = found("OPT007", 300, 302), found("OPT001", 301, 330)
    assert first(LEARNED_THEN_BROKEN, lost, jump) == [("OPT007", None), ("OPT001", "OPT007")]


def test_losses_below_zero_and_few_of_them_tell_nothing() -> None:
    below = LossHistory.of(np.arange(100), np.linspace(2.0, -5.0, 100))
    assert not below.was_learning(0, 90)
    assert not LEARNED_THEN_BROKEN.was_learning(0, 20)
    assert not LossHistory.of(np.zeros(0, np.int64), np.zeros(0)).was_harmed(10)


def test_what_makes_signals_smaller_does_not_make_them_explode() -> None:
    small = found("WGT003", 0, 0, variant="layer-out-of-scale", evidence=(Evidence("weight_rms", "a", 0.01, 1.0, ""),))
    large = found("WGT003", 0, 0, variant="layer-out-of-scale", evidence=(Evidence("weight_rms", "a", 30.0, 1.0, ""),))
    assert (BadStart.makes_smaller(small), BadStart.makes_smaller(large)) == (True, False)
    assert dict(first(NEVER_LEARNED, small, found("GRD010", 0, 9)))["GRD010"] is None
    assert dict(first(NEVER_LEARNED, large, found("GRD010", 0, 9)))["GRD010"] == "WGT003"


def test_a_rate_that_the_program_sets_by_hand_is_the_one_at_the_finding() -> None:
    rates = np.array([1e-6, np.nan, 0.5, 0.0, 0.25])
    losses = np.array([1.0, 1.0, 1.0, np.nan, 1.0])
    known = LossHistory.of(np.arange(5), losses, rates)
    assert [known.rate_at(step) for step in (-1, 0, 1, 2, 3, 4, 9)] == [None, 1e-6, 1e-6, 0.5, 0.5, 0.25, 0.25]
    assert LossHistory.of(np.arange(5), losses).rate_at(4) is None
    finding = found("UPD001", 4, 4)
    group = {"lr": 1e-6, "params": 2}
    by_hand = Program.of([{"type": "SGD", "groups": [group]}], LayerTable())
    assert replace(by_hand, rate_now=known.rate_at(4)).rate(finding) == 0.25
    assert by_hand.rate(finding) == 1e-6
    scheduled = Program.of([{"type": "SGD", "groups": [{**group, "initial_lr": 0.1}]}], LayerTable())
    assert replace(scheduled, rate_now=0.25).rate(finding) == 0.1  # what the user has set


def test_what_builds_up_may_break_a_training_that_had_learned() -> None:
    saturated = found("ACT002", 100, 110, variant="saturated")
    rate = found("OPT007", 0, 4, "moderate", variant="learning-rate-too-high")
    momentum = found("OPT008", 0, 4, "moderate", variant="momentum-too-large")
    assert first(LEARNED_THEN_BROKEN, saturated, rate)[0][0] == "ACT002"
    assert first(LEARNED_THEN_BROKEN, saturated, momentum)[0][0] == "OPT008"
