"""DAT006 on frames made by hand: rows of a table."""

from __future__ import annotations

from collections.abc import Iterable

from tests.detect.building import Training
from tests.detect.stacks import training

from undertow.detect.rules.data.unused_rows import UnusedRows
from undertow.schema import Severity


class TestUnusedRows:
    def rows(self, unused: Iterable[float]) -> Training:
        run = training(UnusedRows)
        for share in unused:
            run.run(1, weight_rows_unused={"first.weight": share})
        return run

    def test_a_table_of_which_almost_nothing_is_used(self) -> None:
        (finding,) = self.rows([0.995] * 100).findings()
        assert (finding.code, finding.severity, finding.layers) == ("DAT006", Severity.MODERATE, ("first.weight",))

    def test_a_twentieth_in_use_is_a_hint(self) -> None:
        assert [finding.severity for finding in self.rows([0.95] * 100).findings()] == [Severity.MILD]

    def test_a_large_vocabulary_that_is_still_being_met_is_silent(self) -> None:
        assert self.rows(1 - 1e-4 * step for step in range(1, 300)).codes() == []

    def test_a_table_in_use_is_silent(self) -> None:
        assert self.rows([0.4] * 200).codes() == []
