"""All cases of the corpus, by tier."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from undertow.demos.case import Case, Fault, registered

TIERS = {
    "development": ("undertow.demos", "corpus.hospital", "corpus.zoo"),
    "practice": ("corpus.practice",),
    "validation": ("corpus.validation",),
    "fresh": ("corpus.fresh",),  # by authors who had read no rule; what counts is its first run
    "loops": ("corpus.loops",),  # likewise, of loops that supervised examples do not cover
    "anew_everyday": ("corpus.anew_everyday",),  # likewise, everyday trainings with the line of each fault marked
    "anew_loops": ("corpus.anew_loops",),  # unusual loops again, likewise; the lines at fault are marked
    "gpu": ("corpus.gpu",),  # of realistic size, likewise; tiny where there is no GPU
}
TWIN = " (twin)"


def cases(tier: str) -> dict[str, Case]:
    """All cases of a tier by name, the sick ones first."""
    return dict(_cases(tier))


def sick_cases(tier: str) -> dict[str, Case]:
    return {name: case for name, case in _cases(tier).items() if case.is_sick}


def healthy_cases(tier: str) -> dict[str, Case]:
    """All programs without a fault, the twins of the sick ones among them."""
    return {name: case for name, case in _cases(tier).items() if not case.is_sick}


def controls(tier: str) -> dict[str, Case]:
    """The healthy programs that are nobody's twin."""
    twins = {case.twin for case in sick_cases(tier).values()}
    return {name: case for name, case in healthy_cases(tier).items() if name not in twins}


@cache
def _cases(tier: str) -> dict[str, Case]:
    found = [case for package in TIERS[tier] for one in registered(package).values() for case in _with_twin(one)]
    found.sort(key=lambda case: (not case.is_sick, case.name))
    return {case.name: replace(case, tier=tier) for case in found}


def _with_twin(case: Case) -> Iterator[Case]:
    """A patient of the hospital is its own twin when its fault is off; here that is a case of its own."""
    if not case.is_sick or case.twin:
        yield case
        return

    def body(steps: int, seed: int, fault: Fault) -> dict[str, float]:
        return case.run(steps, seed, fault_on=False)

    twin = case.name + TWIN
    yield replace(case, twin=twin)
    yield Case(twin, case.summary, case.steps, body, bites=case.bites, architecture=case.architecture)
