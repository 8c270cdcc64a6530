"""Which finding is the cause: root before symptom, by the order of stages, not by the largest anomaly."""

from collections.abc import Sequence
from dataclasses import replace

from undertow.explain.loss_history import LossHistory
from undertow.explain.stages import because, brings_about, spread_order
from undertow.explain.traits import traits_of
from undertow.schema import Evidence, Finding, Severity

_MOST_CONSEQUENCES = 5


class Ranking:
    """The findings of a run and which of them bring about which."""

    def __init__(
        self, findings: Sequence[Finding], *, weights_came_first: bool = False, losses: LossHistory | None = None
    ) -> None:
        """`weights_came_first`: the walk over the loss's graph found a weight non-finite before the step."""
        self.findings = list(findings)
        self._harmed = [
            losses is not None and not traits_of(finding).is_vague and losses.was_harmed(finding.first_step)
            for finding in self.findings
        ]
        self._causes: list[set[int]] = [
            {
                place
                for place, cause in enumerate(self.findings)
                if brings_about(cause, effect, weights_came_first=weights_came_first, losses=losses)
            }
            for effect in self.findings
        ]
        led_to = [self._led_to(place) for place in range(len(self.findings))]
        began = [(finding.first_step, traits_of(finding).stage) for finding in self.findings]
        # Where findings seem to bring about each other, the first one did.
        self._causes = [
            {cause for cause in causes if place not in led_to[cause] or began[cause] < began[place]}
            for place, causes in enumerate(self._causes)
        ]

    def in_order(self) -> list[int]:
        """Places of the findings. Alarms before remarks; causes before what they bring about."""

        def key(place: int) -> tuple[object, ...]:
            finding, is_symptom = self.findings[place], bool(self._causes[place])
            remark = 0 if finding.severity.is_alarm else 5 - finding.severity.rank
            stage = traits_of(finding).stage
            # Symptoms follow in the order they came. Of independent causes the one that ends the training goes first,
            # then what began as a training was learning that has lost it since, then the earlier stage: the likelier.
            ends = finding.severity is not Severity.CRITICAL
            cause = (ends, not self._harmed[place], stage, -finding.severity.rank, finding.first_step)
            when = (finding.first_step, stage) if is_symptom else cause
            return remark, is_symptom, *when, spread_order(finding.code), finding.code, place

        return sorted(range(len(self.findings)), key=key)

    def root_of(self, place: int) -> int | None:
        """The most important of the causes at the beginning of all that led to a finding; None for a cause."""
        order = {other: rank for rank, other in enumerate(self.in_order())}
        roots = [other for other in self._led_to(place) if not self._causes[other]]
        return min(roots, key=order.__getitem__, default=None)

    def _led_to(self, place: int) -> set[int]:
        """All that led to a finding, directly or not."""
        seen: set[int] = set()
        waiting = list(self._causes[place])
        while waiting:
            other = waiting.pop()
            if other not in seen:
                seen.add(other)
                waiting.extend(self._causes[other])
        return seen

    def linked(self, findings: Sequence[Finding]) -> list[Finding]:
        """The ranked findings, as they have become since: symptoms name their cause, causes list their symptoms."""
        roots = [self.root_of(place) for place in range(len(findings))]
        out: list[Finding] = []
        for place, finding in enumerate(findings):
            root = roots[place]
            if root is not None:
                out.append(replace(finding, follows_from=findings[root].code))
                continue
            symptoms = sorted(
                (other for other, its in zip(findings, roots) if its == place and other.severity.is_alarm),
                key=lambda other: (other.first_step, other.detected_step, other.code),
            )
            chain = tuple(_consequence(finding, symptom) for symptom in symptoms[:_MOST_CONSEQUENCES])
            out.append(replace(finding, evidence=(*finding.evidence, *chain)) if chain else finding)
        return out


def _consequence(cause: Finding, symptom: Finding) -> Evidence:
    how = f"led to {symptom.code} {symptom.name} from step {symptom.first_step} on: {because(cause, symptom)}"
    return Evidence("consequence", symptom.layers[0] if symptom.layers else None, None, None, how)
