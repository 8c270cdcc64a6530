"""The last line of a watched training."""

from __future__ import annotations

from pathlib import Path

import pytest

from undertow.explain.diagnosis import diagnose
from undertow.schema import LayerTable, RunFacts, RunStatus, StepRange
from undertow.show.closing import closing_line
from undertow.views.report_wording import cost


def line(facts: RunFacts, steps: int) -> str:
    extent = StepRange(0, steps - 1, steps) if steps else StepRange(None, None, 0)
    status = str(facts.status)
    return closing_line(diagnose([], run="r", facts=facts, layers=LayerTable(), steps=extent, status=status), Path("r"))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (RunFacts(status=RunStatus.FINISHED), "no optimizer of the watched model ever took a step"),
        (RunFacts(status=RunStatus.DETACHED, message="No layer fits. Try others."), "No layer fits. Try others"),
        (
            RunFacts(status=RunStatus.FAILED, message="exit code 5"),
            "no optimizer of the watched model ever took a step; the script ended with exit code 5",
        ),
    ],
)
def test_without_a_step_it_says_why(facts: RunFacts, words: str) -> None:
    assert line(facts, 0) == f"nothing was recorded: {words} (r)"


def test_the_cost_is_written_as_in_the_report() -> None:
    facts = RunFacts(status=RunStatus.FINISHED, overhead_fraction=3.086, overhead_seconds_per_step=0.001)
    closing = line(facts, 3)
    assert closing.startswith("healthy; 3 steps watched, at 308.6 % of the step time (1.00 ms a step).")
    overhead = diagnose([], run="", facts=facts, layers=LayerTable(), steps=StepRange(0, 2, 3)).overhead
    assert cost(overhead).startswith("308.6 % of the step time")


@pytest.mark.parametrize(
    ("steps", "words"), [(1, "1 step watched"), (2, "2 steps watched"), (4000, "4,000 steps watched")]
)
def test_steps_are_counted_in_words(steps: int, words: str) -> None:
    assert line(RunFacts(status=RunStatus.FINISHED), steps).startswith(f"healthy; {words}. Read more")


def test_of_many_reasons_two_are_said() -> None:
    facts = RunFacts(status=RunStatus.FINISHED, reasons=["one.", "two.", "three."])
    said = line(facts, 0)
    assert said == "nothing was recorded: one; two (r)"
