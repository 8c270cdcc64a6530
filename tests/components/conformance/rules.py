"""What a behaviour of the original is, whether Undertow does the same, and the check of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    part: str
    what: str  # as the digest of the original says it
    differs: str  # the name of a difference in docs/components/differences.toml; empty where it is equal
    check: Callable[[], None]  # of what Undertow does: the same, or what the difference says


RULES: list[Rule] = []


def rule(part: str, what: str, differs: str = "") -> Callable[[Callable[[], None]], Callable[[], None]]:
    def keep(check: Callable[[], None]) -> Callable[[], None]:
        RULES.append(Rule(part, what, differs, check))
        return check

    return keep
