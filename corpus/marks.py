"""Which lines a colleague would point at: those that end with the comment `# at fault: NAME OF THE CASE`."""

from __future__ import annotations

import importlib
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from corpus.registry import TIERS

MARK = re.compile(r"\S.*# at fault: (\w+)$")


@cache
def lines_at_fault(tier: str) -> dict[str, tuple[tuple[Path, int], ...]]:
    """File and line number of all marks of a tier, by case; a fault that lies in no line has none."""
    found: dict[str, list[tuple[Path, int]]] = defaultdict(list)
    for package in TIERS[tier]:
        for folder in importlib.import_module(package).__path__:
            for file in sorted(Path(folder).rglob("*.py")):
                for number, line in enumerate(file.read_text().splitlines(), start=1):
                    if mark := MARK.search(line):
                        found[mark[1]].append((file, number))
    return {name: tuple(places) for name, places in found.items()}
