"""What a finding's condition says about itself: its stage among causes, and how far it can be trusted as one."""

from __future__ import annotations

from typing import NamedTuple

from undertow.detect.engine.registry import condition_of
from undertow.detect.engine.stage import Stage
from undertow.schema.findings import Finding


class Traits(NamedTuple):
    stage: Stage
    is_exact: bool
    is_standing: bool
    is_momentary: bool
    is_vague: bool
    is_local: bool


STAGES: dict[Stage, str] = {
    Stage.PROGRAM: "LSS001 LSS002 LSS003 LSS004 MOD001 MOD002 GRD003 GRD007 UPD003 UPD004 OPT008",
    Stage.DATA: "DAT001 DAT003 DAT005 DAT006 DST002",
    Stage.INITIALISATION: "WGT002 WGT003",
    Stage.OPTIMIZER: "OPT007 DAT002 GRD010 NUM005 DST001 WGT005",
    Stage.STEP: "UPD001 UPD002 GRD001 GRD002 GRD006 GRD009 ACT004 ACT005",
    Stage.SIGNAL: "ACT001 ACT002 ACT003",
    Stage.BLOCKED: "GRD004",
    Stage.NONFINITE: "NUM001 NUM002 NUM003 NUM004",
    Stage.COURSE: "WGT001 WGT004 WGT006 GRD005 GRD008 OPT001 OPT003 OPT004",
    Stage.OUTCOME: "DAT004 OPT002 OPT005 OPT006",
}
_BY_CODE = {code: stage for stage, codes in STAGES.items() for code in codes.split()}
_BY_KEY = {
    ("UPD003", "still"): Stage.COURSE,
    ("UPD003", "standstill"): Stage.COURSE,
    ("LSS003", "reach"): Stage.SIGNAL,
    ("OPT007", "low"): Stage.BLOCKED,
    ("DAT001", "shift"): Stage.OPTIMIZER,
    ("WGT001", "runaway"): Stage.OPTIMIZER,
}
EXACT = frozenset({
    "NUM001", "NUM002", "NUM003", "NUM004", "GRD003", "GRD004", "GRD007", "UPD003", "UPD004", "WGT002",
    "LSS001", "LSS002", "LSS003", "LSS004", "MOD001", "MOD002", "OPT008", "DST001", "DST002",
})  # fmt: skip
STANDING = frozenset({
    "DAT001", "DAT003", "DAT004", "DAT005", "DAT006", "WGT002", "WGT003", "LSS001", "LSS002", "LSS003", "LSS004",
    "MOD002", "OPT008", "GRD010", "NUM005",
})  # fmt: skip
PASSING = frozenset({"DAT002", "GRD006", "OPT003"})
LOCAL = frozenset({"GRD003", "UPD003", "UPD004"})
VAGUE = frozenset({"OPT001", "OPT002", "OPT003", "OPT004", "OPT005", "GRD005", "GRD006", "GRD008"})


def traits_of(finding: Finding) -> Traits:
    code = finding.code
    condition = condition_of(code, finding.variant)
    key = finding.variant if condition is None else condition.formerly or condition.variant
    return Traits(
        _BY_KEY.get((code, key), _BY_CODE[code]),
        code in EXACT,
        code in STANDING,
        code in PASSING,
        code in VAGUE,
        code in LOCAL,
    )


def stage_of(code: str) -> Stage:
    """The earliest stage of the conditions behind a code."""
    return _BY_CODE[code]
