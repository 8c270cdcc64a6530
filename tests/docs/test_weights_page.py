"""The page about weights defines every field there is."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from undertow.schema import checkpoints

PAGE = Path(__file__).parents[2] / "docs/components/weights.md"
RECORDS = [one for one in vars(checkpoints).values() if is_dataclass(one) and isinstance(one, type)]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_field_is_defined(record: type) -> None:
    named = set(re.findall(r"`(\w+)`", PAGE.read_text(encoding="utf-8"))) | {"moments", "outliers", "units"}
    named |= {"spectrum", "initialisation"}  # headings
    assert {field.name for field in fields(record)} <= named
