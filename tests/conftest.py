"""For all tests."""

from __future__ import annotations

import math

import pytest

from undertow.detect.engine import Engine, Judgement
from undertow.detect.engine.batch import FrameBatch
from undertow.detect.engine.registry import conditions

OURS = {(one.code, one.variant) for one in conditions()}  # not those that tests of the engine make up


@pytest.fixture(autouse=True)
def errors_in_rules_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users get the other rules' verdicts; we want to know."""
    monkeypatch.setattr(Engine, "strict", True)


@pytest.fixture(autouse=True)
def judgements_are_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a rule says in whatever test: a confidence is one, and layers are layers of this model."""
    judge = Engine._judge
    checked: dict[tuple[str, str], Judgement] = {}  # what stays open is the same object

    def judge_soundly(engine: Engine, batch: FrameBatch) -> dict[int, list[tuple[tuple[str, str], Judgement]]]:
        said = judge(engine, batch)
        for place, judgements in said.items():
            for condition, judgement in judgements:
                if judgement.holds and condition in OURS and checked.get(condition) is not judgement:
                    _check(engine, condition, judgement, batch.frames[place].step)
                    checked[condition] = judgement
        return said

    monkeypatch.setattr(Engine, "_judge", judge_soundly)


def _check(engine: Engine, condition: tuple[str, str], judgement: Judgement, step: int) -> None:
    assert 0 < judgement.confidence <= 1, (condition, judgement.confidence)
    assert judgement.first_step <= step, (condition, judgement.first_step, step)
    assert judgement.summary.endswith((".", "?")), (condition, judgement.summary)
    assert judgement.evidence, condition
    assert len(set(judgement.layers)) == len(judgement.layers), (condition, judgement.layers)
    layers = set(engine._layout.layers)
    for evidence in judgement.evidence:
        assert evidence.layer is None or evidence.layer in layers, (condition, evidence)
        assert evidence.expected is None or math.isfinite(evidence.expected), (condition, evidence)
