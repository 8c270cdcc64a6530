"""Rules that are not conditions yet, driven as they always were. To be deleted with the last of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from undertow.detect.engine.batch import FrameBatch
from undertow.detect.engine.condition import Judgement, Pace
from undertow.detect.rule import Rule, attend, is_attentive, is_of_one_training, is_patient, pace_of


class LegacyWatcher:
    def __init__(self, rule: Rule | type[Rule]) -> None:
        self._rule: Rule = rule() if isinstance(rule, type) else rule
        self.name = self._rule.code
        self.pace: Pace | None = pace_of(self._rule)
        self.is_of_one_training = is_of_one_training(self._rule)
        self._told: dict[int, tuple[Any, Judgement]] = {}

    def owns(self, place: tuple[str, str]) -> bool:
        return place[0] == self.name

    def renew(self, count: int) -> None:
        self._rule = type(self._rule)()
        self._rule.grow(count)

    def grow(self, count: int) -> None:
        self._rule.grow(count)

    def judge(self, batch: FrameBatch) -> Iterator[tuple[int, tuple[str, str], Judgement]]:
        rule = self._rule
        if is_attentive(rule):
            spoken = rule.attend(batch)
        elif is_patient(rule):
            spoken = attend(rule, batch)
        else:
            spoken = ((place, rule.observe(view)) for place, view in enumerate(batch.views()))
        for place, said in spoken:
            for verdict in said:
                yield place, (rule.code, verdict.key.replace(" ", "-")), verdict  # type: ignore[misc]
