"""All remedies by id, and those that can help with each code."""

from __future__ import annotations

from undertow.detect.features import remedies as shared
from undertow.explain.remedies import (
    weights,
)
from undertow.schema.findings import Finding, Remedy

_FAMILIES = (weights,)

TEMPLATES: dict[str, Remedy] = {remedy.id: remedy for remedy in vars(shared).values() if isinstance(remedy, Remedy)}
TEMPLATES.update({remedy.id: remedy for family in _FAMILIES for remedy in family.REMEDIES})

# Every remedy that can help with a code, for its page.
BY_CODE: dict[str, tuple[str, ...]] = {code: names for family in _FAMILIES for code, names in family.BY_CODE.items()}


def fitting(finding: Finding) -> tuple[str, ...]:
    """Those that fit this very case of a code, by its evidence; the best first."""
    for family in _FAMILIES:
        if finding.code in family.BY_CODE:
            chosen = family.fitting(finding)
            return family.BY_CODE[finding.code] if chosen is None else chosen
    return ()
