"""The cases of the corpus as the benchmark counts them."""

from __future__ import annotations

from dataclasses import replace

from corpus.registry import TIERS as REGISTERED
from corpus.registry import cases
from undertow.demos.case import Case, Fault

TIERS = tuple(REGISTERED)
REMARK = "UPD004"  # frozen on purpose deserves a remark: for alarms, that is a healthy training


def load(tier: str) -> dict[str, Case]:
    found = cases(tier)
    remarks = {name for name, case in found.items() if case.code == REMARK}
    twins = {found[name].twin for name in remarks}
    return {name: _as_healthy(case) if name in remarks else case for name, case in found.items() if name not in twins}


def _as_healthy(case: Case) -> Case:
    """What it computes stays the same: frozen."""

    def body(steps: int, seed: int, fault: Fault) -> dict[str, float]:
        return case.run(steps, seed)

    return replace(case, body=body, codes=(), layers=frozenset(), onset=0, twin="")
