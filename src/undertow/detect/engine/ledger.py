"""The findings of a run as judgements come in: each condition's becomes one, which opens, changes and closes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from undertow.detect.engine.condition import Judgement
from undertow.schema import Evidence, Finding
from undertow.schema.codes import CODES

Place = tuple[str, str]  # code and variant


class Change(StrEnum):
    OPENED = "opened"
    UPDATED = "updated"  # other layers, or a higher severity; not merely one more step
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class FindingChange:
    change: Change
    finding: Finding

    @property
    def place(self) -> Place:
        return self.finding.code, self.finding.variant


@dataclass(slots=True)
class _Case:
    """A condition that has held at least once."""

    finding: Finding
    judgement: Judgement | None  # None: taken over from a journal
    last_step: int
    ongoing: bool = True

    def current(self) -> Finding:
        if self.finding.last_step != self.last_step or self.finding.ongoing != self.ongoing:
            self.finding = replace(self.finding, last_step=self.last_step, ongoing=self.ongoing)
        return self.finding


class Ledger:
    def __init__(self) -> None:
        self._cases: dict[Place, _Case] = {}

    def findings(self) -> list[Finding]:
        """In the order they were first found."""
        return [case.current() for case in self._cases.values()]

    def beside(self, change: FindingChange) -> list[Finding]:
        """All findings but the one that changed."""
        return [case.current() for place, case in self._cases.items() if place != change.place]

    def ongoing(self) -> list[Place]:
        return [place for place, case in self._cases.items() if case.ongoing]

    def settle(self, place: Place, judgement: Judgement, step: int, path: Callable[[int], str]) -> FindingChange | None:
        """What a judgement of a condition changes. `path` names a layer by its id."""
        case = self._cases.get(place)
        if not judgement.holds:
            if case is None or not case.ongoing:
                return None
            case.ongoing = False
            return FindingChange(Change.CLOSED, case.current())
        if case is None:
            finding = _finding(place, judgement, step, path)
            self._cases[place] = _Case(finding, judgement, step)
            return FindingChange(Change.OPENED, finding)
        case.last_step = step
        reopened = not case.ongoing
        case.ongoing = True
        if judgement is case.judgement:
            return FindingChange(Change.UPDATED, case.current()) if reopened else None
        before, case.judgement = case.finding, judgement
        after = _finding(place, judgement, before.detected_step, path)
        # A finding is as bad as it ever was, and begins where it first began.
        worst = max(before.severity, after.severity, key=lambda severity: severity.rank)
        case.finding = replace(
            after, first_step=min(before.first_step, after.first_step), severity=worst, last_step=step
        )
        news = reopened or after.layers != before.layers or worst != before.severity
        return FindingChange(Change.UPDATED, case.finding) if news else None

    def recall(self, changes: Iterable[FindingChange], *, adopt: bool) -> None:
        """Take over what an engine saw that watched the run live, from its journal.

        It saw every frame; a disk budget may since have thinned them. Its steps stand where they are earlier;
        with `adopt`, so do findings that the frames left cannot show any more.
        """
        for change in changes:
            found, case = change.finding, self._cases.get(change.place)
            if case is None:
                if adopt:
                    self._cases[change.place] = _Case(found, None, found.last_step, found.ongoing)
                continue
            mine = case.current()
            case.finding = replace(
                mine,
                first_step=min(mine.first_step, found.first_step),
                detected_step=min(mine.detected_step, found.detected_step),
            )


def _finding(place: Place, judgement: Judgement, detected_step: int, path: Callable[[int], str]) -> Finding:
    code, variant = place
    return Finding(
        code=code,
        variant=variant,
        name=CODES[code],
        severity=judgement.severity,
        layers=tuple(path(i) for i in judgement.layers),
        first_step=judgement.first_step,
        detected_step=detected_step,
        last_step=detected_step,
        ongoing=True,
        confidence=judgement.confidence,
        summary=judgement.summary,
        evidence=tuple(map(_contrast, judgement.evidence)),
    )


def _contrast(evidence: Evidence) -> Evidence:
    """What was measured is not set beside what was expected where the two are shown as the same number."""
    if evidence.value is None or evidence.expected is None or f"{evidence.value:.3g}" != f"{evidence.expected:.3g}":
        return evidence
    return replace(evidence, expected=None)
