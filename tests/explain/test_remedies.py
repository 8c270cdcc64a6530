"""Remedies: for every code, in the user's own words, and never against the disease."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import pytest

from undertow.detect.engine.registry import conditions
from undertow.detect.features import remedies as shared
from undertow.explain.pages import page_of
from undertow.explain.remedies import with_remedies
from undertow.explain.user_program import Program
from undertow.schema import Evidence, Finding, Layer, LayerKind, LayerTable, Remedy, Severity
from undertow.schema.codes import CODES

LAYERS = LayerTable.of(
    [
        Layer("blocks.3.fc.weight", kind=LayerKind.WEIGHT, group="blocks.3.fc"),
        Layer("blocks.3.fc", kind=LayerKind.MODULE, group="blocks.3.fc"),
        Layer("scale", kind=LayerKind.PARAMETER, group=""),
    ]
)


def found(code: str, *evidence: Evidence, **more: Any) -> Finding:
    facts: dict[str, Any] = {
        "severity": Severity.SEVERE, "layers": (), "first_step": 0, "detected_step": 5, "last_step": 9, "ongoing": True,
        "confidence": 0.9, "summary": "", "evidence": evidence, **more,
    }  # fmt: skip
    return Finding(code, CODES[code], **facts)


def measured(quantity: str, value: float, expected: float | None = None, how: str = "") -> Evidence:
    return Evidence(quantity, None, value, expected, how)


def ids(finding: Finding) -> list[str]:
    return [remedy.id for remedy in with_remedies(finding).remedies]


_GIVEN = [remedy for one in conditions() for remedy in one.remedies]
_SHARED = [remedy for remedy in vars(shared).values() if isinstance(remedy, Remedy)]
ALL_TEMPLATES = {remedy.id: remedy for remedy in (*_GIVEN, *_SHARED)}
EVERY = {remedy.id: remedy for code in CODES for remedy in page_of(code).remedies}
TOO_LOW = measured("update_ratio", 1e-7, 1e-3)
TOO_HIGH = measured("update_ratio", 0.7, 1e-2)

# Every code in the shapes that its rule gives it.
SHAPES: list[Finding] = [
    *(found(one.code, variant=one.variant) for one in conditions() if one.remedies),
    *(found(one.code, variant=one.variant, layers=("blocks.3.fc.weight",)) for one in conditions() if one.remedies),
    found("GRD010", measured("loss_scale", 1024.0)),
    found("LSS001", measured("loss_input_is_logit", 1.0)), found("MOD002", measured("norm_values", 1.0)),
    found("MOD001", measured("dropout_rate", 0.97)), found("MOD002", measured("norm_eps", 10.0)),
    found("NUM005", variant="scaler-finds-no-scale"),
    found("NUM001", variant="nonfinite-gradient"),
    found("WGT001", measured("update_ratio", 0.02)),
    found("UPD003", measured("gradient_state", 2.0)),
    found("UPD003", measured("update_norm", 0.0)), found("UPD001", measured("backward_count", 16.0)),
    found("GRD002", layers=("rnn.weight_hh_l0",)),
]  # fmt: skip

# What a remedy does to the steps that the optimizer takes.
SMALLER = {
    "lower-the-learning-rate", "clip-gradients", "guard-against-spikes", "lower-the-rate-on-a-plateau",
    "skip-bad-steps", "lower-the-group-rate",
}  # fmt: skip
LARGER = {"raise-the-learning-rate", "raise-the-group-rate", "raise-the-clip-threshold", "small-eps"}
CLIPPING = {"clip-gradients", "guard-against-spikes", "skip-bad-steps"}
MORE_DECAY = {"decay-the-weights"}
LOSES_THE_START = {"reinitialise-the-layer", "initialise-for-the-activation", "initialise-at-random"}

# A disease, and what would make it worse.
CONTRADICTIONS: list[tuple[str, set[str]]] = [
    ("GRD001", SMALLER | CLIPPING),  # vanishing: there is nothing to clip
    ("GRD002", LARGER),
    ("GRD003", SMALLER | LARGER),  # wiring: no rate reaches what has no gradient
    ("GRD004", SMALLER | LARGER),
    ("GRD005", LARGER),
    ("GRD006", LARGER),
    ("GRD007", SMALLER | LARGER),
    ("GRD010", SMALLER | CLIPPING),
    ("UPD001", LARGER),
    ("UPD002", SMALLER | CLIPPING),
    ("UPD003", SMALLER),
    ("UPD004", SMALLER | LARGER | LOSES_THE_START),
    ("ACT001", LARGER),
    ("ACT002", LARGER),
    ("ACT004", LARGER),
    ("WGT001", LARGER),
    ("WGT005", MORE_DECAY | SMALLER),
    ("WGT006", LARGER | LOSES_THE_START),
    ("OPT001", LARGER),
    ("OPT003", LARGER),
    ("OPT004", LARGER),
    ("OPT005", SMALLER | LARGER),  # the cause is not known: look, do not turn knobs
    ("DAT001", LARGER | CLIPPING),
    ("DAT004", SMALLER | LARGER),
    ("LSS001", SMALLER | LARGER),
    ("LSS003", SMALLER | LARGER),
    ("MOD001", SMALLER | LARGER),
    ("NUM001", LARGER),
    ("NUM002", LARGER),
    ("NUM003", LARGER),
]


@pytest.mark.parametrize(("code", "forbidden"), CONTRADICTIONS)
def test_no_advice_against_the_disease(code: str, forbidden: set[str]) -> None:
    assert forbidden <= set(EVERY)
    shapes = [finding for finding in SHAPES if finding.code == code]
    assert shapes
    for finding in shapes:
        assert not set(ids(finding)) & forbidden


@pytest.mark.parametrize("finding", SHAPES, ids=lambda finding: finding.code)
def test_rates_go_the_right_way_and_nothing_is_said_twice(finding: Finding) -> None:
    chosen = ids(finding)
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= {remedy.id for remedy in page_of(finding.code).remedies}, "its page must list it"
    assert chosen
    assert not ({"lower-the-learning-rate", "raise-the-learning-rate"} <= set(chosen))


def test_the_direction_is_taken_from_the_evidence() -> None:
    def of_rate(variant: str) -> list[str]:
        return ids(found("OPT007", variant=variant))

    assert of_rate("learning-rate-too-low") == ["raise-the-learning-rate"]
    assert of_rate("learning-rate-too-high")[0] == "lower-the-learning-rate"
    assert of_rate("schedule-decays-too-fast")[0] == "step-the-schedule-per-epoch"
    assert of_rate("learning-rate-jump")[0] == "remove-the-jump"
    assert ids(found("OPT008", variant="eps-too-large")) == ["small-eps"]
    large = found("WGT003", variant="weights-too-large")
    assert ids(large) != ids(replace(large, evidence=(Evidence("weight_rms", "a", 9.0, 1.0, "of one layer"),)))


def program(kind: str = "SGD", layers: LayerTable = LAYERS, **group: Any) -> Program:
    return Program.of([{"type": kind, "groups": [group]}], layers)


@pytest.mark.parametrize("remedy", ALL_TEMPLATES.values(), ids=lambda remedy: remedy.id)
def test_code_for_this_optimizer_and_this_layer_is_python(remedy: Any) -> None:
    programs = [
        Program(), Program.of([], LAYERS), program(lr=0.1, momentum=0.9, weight_decay=0),
        program("AdamW", lr=3e-4, betas=[0.9, 0.95], eps=1e-8, weight_decay=50.0),
        program("Lion", lr="tensor"), program("Sharp<Optimizer>", lr=0.0),
        Program.of([{"type": "Adam", "groups": [{"lr": 0.1}, {"lr": 0.2}]}], LAYERS), Program.of([{}], LAYERS),
    ]  # fmt: skip
    for one in programs:
        for finding in (None, found("GRD004"), *(found("GRD004", layers=(path,)) for path in (*LAYERS, "gone"))):
            filled = one.fill(remedy, finding)
            ast.parse(filled.how)
            assert "$" not in filled.how
            assert "$" not in filled.what
            assert (filled.id, filled.risk) == (remedy.id, remedy.risk)


def test_the_code_names_what_the_user_has() -> None:
    def how(name: str, one: Program, **more: Any) -> str:
        return one.fill(ALL_TEMPLATES[name], found("GRD004", **more)).how

    sgd = program(lr=3.0, momentum=0.9, weight_decay=0, nesterov=False)
    assert how("lower-the-learning-rate", sgd) == (
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)"
    )
    heavy = program(lr=3.0, momentum=0.9, weight_decay=1e-4, nesterov=True)
    assert how("lower-the-learning-rate", heavy) == (
        "optimizer = torch.optim.SGD(\n"
        "    model.parameters(), lr=0.3, momentum=0.9, weight_decay=1e-4, nesterov=True\n)  # lr was 3"
    )
    adam = program("AdamW", lr=1e-3, betas=[0.9, 0.999], eps=1.0, weight_decay=0.01)
    assert how("small-eps", adam) == "optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)  # eps was 1"
    assert how("raise-the-learning-rate", Program.of([{}, {}], LAYERS)).startswith("for group in")
    assert how("reinitialise-the-layer", sgd, layers=("blocks.3.fc.weight",)) == (
        'model.get_submodule("blocks.3.fc").reset_parameters()'
    )
    assert how("freeze-openly", sgd, layers=("scale",)).startswith("layer = model\n")
    assert "accumulate = 16" in how("average-the-micro-batches", sgd, evidence=(measured("backward_count", 16.0),))


def test_every_remedy_says_when_not_or_only_looks() -> None:
    silent = [remedy.id for remedy in EVERY.values() if not remedy.when_not]
    assert all("only looks" in EVERY[name].risk for name in silent), silent


def test_the_code_names_the_variable_of_one_of_several_models() -> None:
    paths = ("critic.0", "generator.0")
    layers = LayerTable.of(
        [Layer(f"{path}.weight", group=path, module_type="Linear") for path in paths]
        + [Layer(path, kind=LayerKind.MODULE, group=path, module_type="Linear") for path in paths]
    )
    (first, *_) = with_remedies(found("WGT003", layers=("critic.0",)), Program.of([], layers)).remedies
    assert first.how == 'critic.get_submodule("0").reset_parameters()'
