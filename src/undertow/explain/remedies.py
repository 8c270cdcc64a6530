"""What the user can change: the remedies of the finding's condition, written for this optimizer and this layer."""

from dataclasses import replace

from undertow.detect.features.remedies import LOWER_LEARNING_RATE
from undertow.explain.traits import traits_of
from undertow.explain.user_program import Program
from undertow.schema import Finding


def with_remedies(finding: Finding, program: Program | None = None, *, diverged: bool = False) -> Finding:
    """The finding with the remedies that fit this very case of it.

    `diverged`: the values had grown by orders of magnitude before, so no operation is to blame.
    """
    chosen = list(traits_of(finding).remedies_for(finding))
    if diverged:
        chosen = [LOWER_LEARNING_RATE, *(remedy for remedy in chosen if remedy != LOWER_LEARNING_RATE)]
    fill = (program or Program()).fill
    return replace(finding, remedies=tuple(fill(remedy, finding) for remedy in chosen))
