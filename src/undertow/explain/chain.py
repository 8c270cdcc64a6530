"""How one thing led to the other: what each cause brought about, told where the cause is told."""

from collections.abc import Sequence
from dataclasses import replace

from undertow.explain.ranking import Ranking
from undertow.explain.stages import because
from undertow.schema import Evidence, Finding

CONSEQUENCE = "consequence"  # what evidence of the chain has in place of a quantity
_MOST = 5


def linked(findings: Sequence[Finding], ranking: Ranking) -> list[Finding]:
    """The same findings in the same places: symptoms name their cause, causes list their symptoms as they came."""
    roots = [ranking.root_of(place) for place in range(len(findings))]
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
        chain = tuple(_told(finding, symptom) for symptom in symptoms[:_MOST])
        out.append(replace(finding, evidence=(*finding.evidence, *chain)) if chain else finding)
    return out


def _told(cause: Finding, symptom: Finding) -> Evidence:
    how = f"led to {symptom.code} {symptom.name} from step {symptom.first_step} on: {because(cause, symptom)}"
    return Evidence(CONSEQUENCE, symptom.layers[0] if symptom.layers else None, None, None, how)
