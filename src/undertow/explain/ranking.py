"""Which finding is the cause: root before symptom, along a small causal graph, not by the largest anomaly."""

from __future__ import annotations

from collections.abc import Sequence

from undertow.schema.findings import Finding

# In the order things happen within one step: forward, backward, optimizer, weights.
_ORDER = ("NUM004", "NUM002", "GRD003", "GRD004", "NUM001", "GRD007", "UPD003", "NUM003", "UPD004")

# What a finding can bring about, at the same step or later.
_CONSEQUENCES: dict[str, frozenset[str]] = {
    "GRD007": frozenset({"NUM001", "NUM002", "NUM003", "GRD004"}),
    "NUM001": frozenset({"NUM002", "NUM003", "GRD004"}),
    "NUM002": frozenset({"NUM001", "NUM003", "GRD004"}),
    "NUM003": frozenset({"NUM001", "NUM002", "GRD004"}),
    "GRD004": frozenset({"UPD003"}),
}


def place_in_step(code: str) -> int:
    return _ORDER.index(code) if code in _ORDER else len(_ORDER)


def ranked(findings: Sequence[Finding], weights_came_first: bool = False) -> list[Finding]:
    """Alarms before remarks; causes before what they bring about; then the worse, then the earlier.

    `weights_came_first`: the walk over the loss's graph found a weight that was non-finite before the step.
    """

    def moment(finding: Finding) -> tuple[int, int]:
        early = weights_came_first and finding.code == "NUM003"
        return finding.first_step, -1 if early else place_in_step(finding.code)

    def is_symptom(finding: Finding) -> bool:
        return any(
            finding.code in _CONSEQUENCES.get(other.code, ())
            and other.severity.is_alarm
            and moment(other) < moment(finding)
            for other in findings
        )

    def key(finding: Finding) -> tuple[int, bool, int, tuple[int, int], str]:
        tier = 0 if finding.severity.is_alarm else 5 - finding.severity.rank
        symptom = is_symptom(finding)
        # Symptoms follow in the order they came; independent causes by how bad they are.
        return tier, symptom, 0 if symptom else -finding.severity.rank, moment(finding), finding.code

    return sorted(findings, key=key)
