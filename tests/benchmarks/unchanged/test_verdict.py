"""What three trainings of a program say."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.unchanged.verdict import Result, judge


def parts(**changed: Any) -> dict[str, Any]:
    usual = {"exit status": 0, "stdout": "loss 1\n", "stderr": "", "warnings": [], "weights": "a", "torch random": "b"}
    return {**usual, **changed}


def trial(plain: dict[str, Any], again: dict[str, Any], watched: dict[str, Any], **more: Any) -> dict[str, Any]:
    seen = {"parts": watched, "recorded": 8, "status": "finished", **more}
    return {"name": "x", "steps": 8, "plain": {"parts": plain}, "plain again": {"parts": again}, "watched": seen}


def test_the_same_is_identical() -> None:
    verdict = judge(trial(parts(), parts(), parts()))
    assert (verdict.result, verdict.is_failure) == (Result.IDENTICAL, False)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"weights": "c"}, "weights"),
        ({"stdout": "loss 2\n"}, "stdout (loss 2)"),
        ({"stderr": "undertow: error UT100\n"}, "stderr (undertow: error UT100)"),
        ({"warnings": ["a.py:3: UserWarning: no"]}, "warnings (a.py:3: UserWarning: no)"),
        ({"exit status": -11}, "exit status (-11)"),
    ],
)
def test_any_part_may_differ(changed: dict[str, Any], said: str) -> None:
    verdict = judge(trial(parts(), parts(), parts(**changed)))
    assert (verdict.result, verdict.detail, verdict.is_failure) == (Result.DIFFERS, said, True)


def test_what_is_not_the_same_in_itself_is_left_out() -> None:
    verdict = judge(trial(parts(stdout="1 s"), parts(stdout="2 s"), parts(stdout="3 s")))
    assert (verdict.result, verdict.is_failure) == (Result.PARTLY, False)
    assert "stdout" in verdict.detail
    verdict = judge(trial(parts(stdout="1 s"), parts(stdout="2 s"), parts(stdout="3 s", weights="c")))
    assert (verdict.result, verdict.detail) == (Result.DIFFERS, "weights")


def test_what_was_not_watched_proves_nothing() -> None:
    assert judge(trial(parts(), parts(), parts(), recorded=7)).result is Result.UNSEEN
    assert judge(trial(parts(), parts(), parts(), status="detached")).result is Result.UNSEEN
    assert judge(trial(parts(), parts(), parts(), recorded=7)).is_failure
