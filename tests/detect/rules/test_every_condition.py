"""What holds for every condition: it describes itself, in one file of one thought."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from statistics import median

import pytest

from undertow.detect import features, rules
from undertow.detect.engine import Condition, Limit, Stage
from undertow.detect.engine.registry import conditions
from undertow.explain.pages import SECTIONS, page_of, parse
from undertow.schema import STREAMS
from undertow.schema.codes import CODES, FAMILIES

ROOM = Path(rules.__file__).parent
DOCS = Path(__file__).parents[3] / "docs"
LONGEST_SECTION = 120  # words
LONGEST_LINE_OF_REMEDY = 72  # characters: it is shown indented, in a terminal of 80
# How the words of a limit begin that counts steps, or what comes once in a step.
COUNTS_STEPS = re.compile(r"(measured |sampled |optimizer )?(steps|losses|batches)\b")


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


@pytest.mark.parametrize("code", CODES)
def test_every_remedy_is_a_sentence_and_python(code: str) -> None:
    remedies = page_of(code).remedies
    assert remedies
    for remedy in remedies:
        ast.parse(remedy.how)
        longest = max(map(len, remedy.how.splitlines()))
        assert longest <= LONGEST_LINE_OF_REMEDY, f"{remedy.id}: a line of its code has {longest} characters"
        assert remedy.what.endswith("."), remedy.id
        assert remedy.risk.endswith("."), remedy.id


@pytest.mark.parametrize("condition", conditions(), ids=lambda one: f"{one.code}-{one.variant}")
def test_it_needs_what_is_recorded(condition: type[Condition]) -> None:
    """A name that no frame has would keep the condition silent for ever."""
    needs = condition.needs if condition.tracker is None else condition.tracker.needs
    pages = "".join((DOCS / page).read_text(encoding="utf-8") for page in ("capture.md", "distributed.md"))
    recorded = set(STREAMS) | set(re.findall(r"^\| `(\w+)`", pages, re.MULTILINE))
    assert needs <= recorded, "streams are in docs/quantities.md, scalars in docs/capture.md and distributed.md"


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


def all_limits() -> Iterator[tuple[str, Limit]]:
    """Of conditions, and of what they share."""
    for package in (rules, features):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = import_module(found.name)
            for holder in (module, *(one for one in vars(module).values() if inspect.isclass(one))):
                for name, value in vars(holder).items():
                    if isinstance(value, Limit):
                        yield f"{found.name}: {name}", value


def test_a_count_of_steps_is_relative_or_says_why_not() -> None:
    limits = list(all_limits())
    assert len(limits) > 400
    silent = [f"{name}: {limit.why}" for name, limit in limits if COUNTS_STEPS.match(limit.why) and not limit.fixed]
    assert silent == []
    assert [name for name, limit in limits if limit.fixed and not COUNTS_STEPS.match(limit.why)] == []
    assert len({limit.fixed for _, limit in limits}) == 8  # seven reasons, and none
