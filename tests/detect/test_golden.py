"""The golden texts are complete: every condition speaks in a test, and gives each of its remedies in one."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest
from tests.detect.rules.conftest import GOLDEN

from undertow.detect.engine import Condition
from undertow.detect.engine.registry import conditions

SAID = re.compile(r"^(\w{3}\d{3}) ([\w-]+): .*?^  remedies: (.*?)$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def given() -> dict[tuple[str, str], set[str]]:
    """The remedies that some test was given, by code and variant."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for path in GOLDEN.rglob("*.txt"):
        for code, variant, remedies in SAID.findall(path.read_text(encoding="utf-8")):
            found[code, variant].update(remedies.split(", "))
    return found


@pytest.mark.parametrize("condition", conditions(), ids=lambda one: f"{one.code} {one.variant}")
def test_it_speaks_and_gives_every_remedy(condition: type[Condition], given: dict[tuple[str, str], set[str]]) -> None:
    assert (condition.code, condition.variant) in given, "no test in which it holds"
    assert {remedy.id for remedy in condition.remedies} <= given[condition.code, condition.variant]


def test_nothing_is_shown_beside_an_expectation_that_it_meets() -> None:
    met = re.compile(r"^  \S+ of \S+: (?!unknown)(\S+), expected \1;", re.MULTILINE)
    assert [found for path in GOLDEN.rglob("*.txt") for found in met.findall(path.read_text(encoding="utf-8"))] == []
