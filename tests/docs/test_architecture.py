"""Every name on the page about the architecture can be found in the source."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs/architecture.md"
ROOMS = {entry.stem for entry in (PAGE.parents[1] / "src/undertow").iterdir()}
NAMES = sorted(
    name
    for name in set(re.findall(r"[a-z_]+(?:\.\w+)+", PAGE.read_text(encoding="utf-8")))
    if name.split(".")[0] in ROOMS
)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_can_be_found(name: str) -> None:
    module, *rest = name.split(".")
    found = importlib.import_module(f"undertow.{module}")
    while rest and hasattr(found, "__path__") and importlib.util.find_spec(f"{found.__name__}.{rest[0]}"):
        found, rest = importlib.import_module(f"{found.__name__}.{rest[0]}"), rest[1:]
    thing: Any = found
    for part in rest:
        if not hasattr(thing, part):
            source = inspect.getsource(found)
            assert f"self.{part} = " in source or f"self.{part}, " in source, name
            return
        thing = getattr(thing, part)


def test_there_are_names() -> None:
    assert len(NAMES) > 25
