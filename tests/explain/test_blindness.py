"""What was hardly measured is said in words that are true of it."""

from __future__ import annotations

import numpy as np
import pytest

from undertow.explain.blindness import blind_rules, record_gap, unseen_streams
from undertow.schema import StreamCoverage


@pytest.mark.parametrize(
    ("name", "stream", "words"),
    [
        ("gradients", StreamCoverage(0, 400, layers=4, layers_seldom=4), "gradients were never measured"),
        ("loss", StreamCoverage(0, 400), "no loss was seen"),
        ("loss", StreamCoverage(3, 400), "the loss was seen at 3 of 400 steps"),
        (
            "activations",
            StreamCoverage(3, 4000, largest_gap=3990, layers=4, layers_seldom=4),
            "activations were measured at only 3 of 4,000 steps",
        ),
        (
            "weights",
            StreamCoverage(300, 4000, largest_gap=2500, layers=40, layers_seldom=9),
            "9 of 40 layers had no weights measured for up to 2,500 steps",
        ),
    ],
)
def test_what_was_hardly_measured(name: str, stream: StreamCoverage, words: str) -> None:
    blind = blind_rules({name: stream})
    assert {one.why for one in blind} == {words}
    (said,) = unseen_streams({name: stream}, blind)
    assert said.startswith(f"{words}, too rarely to judge ")
    assert said.endswith(f"({blind[0].setting} would look closer)")


def test_what_was_measured_often_enough() -> None:
    stream = StreamCoverage(300, 4000, largest_gap=2500, layers=100, layers_seldom=9)
    assert blind_rules({"gradients": stream}) == ()
    assert unseen_streams({"gradients": stream}, ()) == []


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([0, 1, 2, 3, 40], ["no step between 3 and 40 is in the record"]),
        ([0, 1, 2, 3, 23], []),
        ([0, 100, 200, 300], []),
        ([0, 5000], []),
        ([], []),
    ],
)
def test_a_gap_in_the_record(steps: list[int], said: list[str]) -> None:
    assert record_gap(np.array(steps, np.int64)) == said
