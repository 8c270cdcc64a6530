"""What the user can change: a catalogue by id, chosen by evidence, written for this optimizer and this layer."""

from __future__ import annotations

from dataclasses import replace

from undertow.explain.remedies.catalogue import BY_CODE, TEMPLATES, fitting
from undertow.explain.remedies.optimisation import LOWER_RATE
from undertow.explain.remedies.program import Program
from undertow.schema.findings import Finding, Remedy

__all__ = ["BY_CODE", "LOWER_RATE", "REMEDIES", "Program", "with_remedies"]

# As a page shows them, for trainings in general.
REMEDIES: dict[str, Remedy] = {name: Program().fill(remedy) for name, remedy in TEMPLATES.items()}


def with_remedies(finding: Finding, program: Program | None = None, *, diverged: bool = False) -> Finding:
    """The finding with the remedies that fit this very case of it.

    `diverged`: the values had grown by orders of magnitude before, so no operation is to blame.
    """
    names = fitting(finding)
    if diverged:
        names = (LOWER_RATE, *(name for name in names if name != LOWER_RATE))
    filled = (program or Program()).fill
    return replace(finding, remedies=tuple(filled(TEMPLATES[name], finding) for name in names))
