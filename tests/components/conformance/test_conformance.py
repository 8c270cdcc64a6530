"""Every item of the original is there: equal, or different for a reason that stands on a page. None is missing.

`python -m pytest -n 0 -s tests/components/conformance` prints the table. Items are counted one each: a type, a field, a
variant, a default, a public call, and a behaviour (a row of formulas, an edge case or a golden value of the digest).
"""

from __future__ import annotations

import inspect
import json
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from tests.components.conformance import animator_rules, enhanced_rules, flow_rules, weight_rules  # noqa: F401
from tests.components.conformance.rules import RULES, Rule

import undertow
from undertow import schema
from undertow.schema.seeds.record import Record

HERE = Path(__file__).parent
DIFFERENCES: dict[str, Any] = tomllib.loads((HERE.parents[2] / "docs/components/differences.toml").read_text("utf-8"))
DIFFERENT_FIELDS = {name for one in DIFFERENCES.values() for name in one["fields"]}
ABSENT = object()


@dataclass(frozen=True)
class Item:
    part: str
    kind: str  # record, enum, class, field, variant, attribute, default, call
    owner: str
    name: str = ""
    value: str = ""

    @property
    def differs(self) -> bool:
        """A field that is there and means something else, or can be None; its difference is on the page."""
        return self.kind == "field" and f"{self.owner}.{self.name}" in DIFFERENT_FIELDS


def surface() -> Iterator[Item]:
    part = ""
    inner = {"record": "field", "enum": "variant", "class": "attribute", "default": "default", "call": "call"}
    for line in (HERE / "surface.txt").read_text("utf-8").splitlines():
        if line.startswith("["):
            part = line.strip("[]")
        elif line and not line.startswith("#"):
            kind, _, rest = line.partition(" ")
            owner, _, names = rest.partition(":")
            if kind in ("record", "enum", "class"):
                yield Item(part, kind, owner)
            for name in names.split():
                yield Item(part, inner[kind], owner, *name.replace("(", "=", 1).rstrip(")").split("=", 1))


SURFACE = list(surface())


def found(owner: str) -> Any:
    return getattr(undertow, owner, None) or getattr(schema, owner, None)


def holds(item: Item) -> bool:
    kind = found(item.owner)
    if item.kind in ("record", "enum", "class"):
        base = {"record": Record, "enum": StrEnum, "class": object}[item.kind]
        return isinstance(kind, type) and issubclass(kind, base)
    if item.kind == "field":
        return item.name in [one.name for one in fields(kind)]
    if item.kind == "variant":
        return item.name in list(kind) and str(kind(item.name)) == item.name
    if item.kind == "attribute":
        return hasattr(kind(), item.name)
    if item.kind == "default":
        return getattr(kind(), item.name) == json.loads(item.value)
    parameters = list(inspect.signature(getattr(kind, item.name)).parameters.values())
    names = [one.name for one in parameters if one.name != "self"]
    needed = [one.name for one in parameters if one.default is MISSING.__class__ and one.name != "self"]
    wanted = [name for name in item.value.split(",") if name]
    return names[: len(wanted)] == wanted and len(needed) <= len(wanted)


@pytest.mark.parametrize("item", SURFACE, ids=lambda item: f"{item.owner}.{item.name}".strip("."))
def test_surface(item: Item) -> None:
    assert holds(item), f"{item.kind} {item.owner}.{item.name} of the original is missing"


def test_fields_come_in_the_order_of_the_original() -> None:
    """As its JSON has them; what is new stands behind."""
    for owner in {item.owner for item in SURFACE if item.kind == "field"} - {"GradientHistory"}:
        wanted = [item.name for item in SURFACE if item.kind == "field" and item.owner == owner]
        assert [one.name for one in fields(found(owner))][: len(wanted)] == wanted


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.part}: {rule.what}")
def test_behaviour(rule: Rule) -> None:
    assert not rule.differs or rule.differs in DIFFERENCES, f"nothing is said of {rule.differs}"
    rule.check()


def test_every_difference_is_checked_and_names_fields_that_exist() -> None:
    assert set(DIFFERENCES) == {rule.differs for rule in RULES} - {""}
    for name in DIFFERENT_FIELDS:
        owner, _, field = name.partition(".")
        assert field in [one.name for one in fields(found(owner))], name
    for name, one in DIFFERENCES.items():
        assert all(one[key].strip() for key in ("component", "original", "here", "why")), name


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    for item in SURFACE:
        counts[item.part, "missing" if not holds(item) else "different" if item.differs else "equal"] += 1
    for rule in RULES:
        counts[rule.part, "different" if rule.differs else "equal"] += 1
    columns = ("equal", "different", "missing")
    with capsys.disabled():
        print(
            f"\n\n{'part of the original':22}{'items':>7}{'equal':>7}{'different, with its reason':>28}{'missing':>9}"
        )
        for part in (*dict.fromkeys(item.part for item in SURFACE), "sum"):
            row = [
                sum(counts[one, kind] for one in {key for key, _ in counts} if part in (one, "sum")) for kind in columns
            ]
            print(f"{part:22}{sum(row):>7}{row[0]:>7}{row[1]:>28}{row[2]:>9}")
    assert sum(counts[key] for key in counts if key[1] == "missing") == 0
    assert sum(counts.values()) >= 670
