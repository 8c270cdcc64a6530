"""DAT006 on frames made by hand: classes among the labels."""

from __future__ import annotations

import math

from tests.detect.building import Training
from tests.detect.stacks import training

from undertow.detect.rules.data.unused_classes import UnusedClasses
from undertow.schema import Severity


class TestUnusedClasses:
    def classes(self, pooled: float, classes: float, steps: int) -> Training:
        scalars = {"label_entropy_pooled": pooled, "loss_classes": classes, "loss_rows": 64.0}
        return training(UnusedClasses).run(steps, scalars=scalars)

    def test_a_classifier_whose_labels_are_all_the_same(self) -> None:
        eight = self.classes(0.0, 8.0, 60).findings()  # as many as the last layer has outputs
        assert [(f.code, f.severity) for f in eight] == [("DAT006", Severity.SEVERE)]
        assert self.classes(0.0, 8.0, 30).alarms() == []  # sorted data may begin like this

    def test_few_of_many_classes_or_a_single_one_are_a_hint(self) -> None:
        assert [f.severity for f in self.classes(0.0, 10.0, 20).findings()] == [Severity.MILD]
        assert [f.severity for f in self.classes(math.log(50), 50_000.0, 400).findings()] == [Severity.MILD]

    def test_too_few_labels_say_nothing(self) -> None:
        assert self.classes(math.log(30), 50_000.0, 10).codes() == []

    def test_text_that_uses_common_words_most_is_silent(self) -> None:
        assert self.classes(math.log(900), 50_000.0, 2000).codes() == []

    def test_two_classes_in_unequal_parts_are_silent(self) -> None:
        assert self.classes(0.3, 2.0, 200).codes() == []
