"""The conditions, one file each, by family; they never import each other."""

from __future__ import annotations

from undertow.detect.rule import Rule

RULES: tuple[type[Rule], ...] = ()  # those that are not conditions: none is left
