"""What the user can change: a catalogue by id, chosen by evidence, written for this optimizer and this layer."""

from __future__ import annotations

from dataclasses import replace

from undertow.detect.engine.registry import condition_of, conditions_of
from undertow.detect.features.remedies import LOWER_LEARNING_RATE
from undertow.explain.remedies.catalogue import TEMPLATES
from undertow.explain.remedies.optimisation import LOWER_RATE, rate_is_too_low
from undertow.explain.remedies.program import Program
from undertow.schema.findings import Finding, Remedy

__all__ = ["LOWER_RATE", "REMEDIES", "Program", "with_remedies"]

# As a page shows them, for trainings in general.
REMEDIES: dict[str, Remedy] = {name: Program().fill(remedy) for name, remedy in TEMPLATES.items()}


def with_remedies(finding: Finding, program: Program | None = None, *, diverged: bool = False) -> Finding:
    """The finding with the remedies that fit this very case of it.

    `diverged`: the values had grown by orders of magnitude before, so no operation is to blame.
    """
    condition = condition_of(finding.code, finding.variant)
    if condition is not None:
        chosen = list(condition.remedies_for(finding))
    else:  # which of several conditions it was is not known
        known = conditions_of(finding.code)
        fits = [one for one in known if one.lowers_steps == rate_is_too_low(finding)] or known
        chosen = list({remedy.id: remedy for one in fits for remedy in one.remedies}.values())
    if diverged:
        chosen = [LOWER_LEARNING_RATE, *(remedy for remedy in chosen if remedy.id != LOWER_RATE)]
    filled = (program or Program()).fill
    return replace(finding, remedies=tuple(filled(remedy, finding) for remedy in chosen))
