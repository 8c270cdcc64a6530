"""What holds for every condition: it describes itself, in one file of one thought."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from statistics import median

import pytest

from undertow.detect import rules
from undertow.detect.engine import Condition, Stage
from undertow.detect.engine.registry import conditions
from undertow.explain.pages import SECTIONS, parse
from undertow.schema.codes import CODES, FAMILIES

ROOM = Path(rules.__file__).parent
LONGEST_SECTION = 120  # words


def file_of(condition: type[Condition]) -> Path:
    return Path(inspect.getfile(condition))


@pytest.mark.parametrize("condition", conditions(), ids=lambda one: f"{one.code}-{one.variant}")
def test_it_describes_itself(condition: type[Condition]) -> None:
    assert condition.code in CODES
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", condition.variant)
    assert isinstance(condition.stage, Stage)
    assert file_of(condition).parent == ROOM / FAMILIES[condition.code[:3]]
    summary, sections = parse(inspect.cleandoc(condition.__doc__ or ""))
    assert summary.endswith(".")
    assert tuple(title for title, _ in sections) == SECTIONS
    for title, text in sections:
        assert text
        assert title == "References" or len(text.split()) <= LONGEST_SECTION, title
    assert condition.is_vague or condition.meaning
    assert not condition.meaning.endswith(".")
    assert all(limit.why for limit in condition.limits().values())


def test_no_two_share_a_name_or_a_file() -> None:
    names = [(one.code, one.variant) for one in conditions()]
    assert len(set(names)) == len(names)
    assert len({file_of(one) for one in conditions()}) == len(names)


def test_files_are_short() -> None:
    lengths = {file_of(one).name: len(file_of(one).read_text().splitlines()) for one in conditions()}
    assert median(lengths.values()) <= 120
    assert {name: length for name, length in lengths.items() if length > 250} == {}


def test_every_code_has_a_condition() -> None:
    assert {one.code for one in conditions()} == set(CODES)
