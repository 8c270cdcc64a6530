"""Remedies fit the program: none sets what is set, or speaks of a module that the model does not have."""

from __future__ import annotations

import ast
import math
import re
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.explain.test_remedies import found, measured

from undertow.detect.engine.registry import conditions
from undertow.explain.remedies import with_remedies
from undertow.explain.suggested_values import higher_rate, lower_rate, number, percent
from undertow.explain.user_program import Program
from undertow.schema import Evidence, Finding, Layer, LayerKind, LayerTable

OPTIMIZERS: list[dict[str, Any]] = [
    {"type": kind, "groups": [settings] * groups}
    for kind, settings, groups in [
        ("SGD", {"lr": 0.1, "momentum": 0, "weight_decay": 0, "nesterov": False}, 1),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3}, 1),
        ("SGD", {"lr": 2.0, "momentum": 0.999, "weight_decay": 0.5}, 2),
        ("Adam", {"lr": 1.0, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0}, 1),
        ("AdamW", {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.01}, 1),
        ("AdamW", {"lr": 1e-3, "betas": [0.99, 0.999], "eps": 1.0, "weight_decay": 50.0}, 2),
        ("Adam", {"lr": 3e-4, "initial_lr": 3e-4, "betas": [0.9, 0.999], "eps": 1e-12, "weight_decay": 0}, 1),
        ("RMSprop", {"lr": 1e-2, "momentum": 0, "eps": 1e-8, "weight_decay": 0}, 1),
        ("Sharp", {"lr": "tensor"}, 1),
    ]
]
ARCHITECTURES = {
    "tabular": ("Linear", "ReLU", "Linear", "ReLU", "Linear"),
    "sigmoids": ("Linear", "Sigmoid", "Linear", "Sigmoid", "Linear", "Sigmoid", "Linear"),
    "convolutional": ("Conv2d", "BatchNorm2d", "LeakyReLU", "Conv2d", "BatchNorm2d", "LeakyReLU", "Linear"),
    "attention": ("Embedding", "MultiheadAttention", "LayerNorm", "Linear", "GELU", "Linear"),
    "recurrent": ("Embedding", "RNN", "Linear"),
    "gated": ("Embedding", "LSTM", "Linear"),
    "own": ("Block", "Block", "Block", "Block"),
}
KINDS = {"Embedding": LayerKind.EMBEDDING, "RNN": LayerKind.RECURRENT, "LSTM": LayerKind.RECURRENT}
WITHOUT_PARAMETERS = ("ReLU", "Sigmoid", "LeakyReLU", "GELU")
# What evidence there may be, of one finding or another.
EVIDENCE: list[tuple[Evidence, ...]] = [
    (),
    (measured("update_ratio", 0.7, 0.01),),
    (measured("update_ratio", 1e-6, 1e-3), measured("optimizer_eps_ratio", 0.01, 1e3)),
    (measured("gradient_norm_total", 900.0, 3.0), measured("optimizer_rate", 0.3, 2e-3)),
]


def layers(types: tuple[str, ...], dtype: str) -> LayerTable:
    every: list[Layer] = []
    for place, kind in enumerate(types):
        path = f"layer{place}"
        if kind not in WITHOUT_PARAMETERS:
            facts: dict[str, Any] = {"group": path, "module_type": kind, "shape": (64, 64), "dtype": dtype}
            every.append(Layer(f"{path}.weight", kind=KINDS.get(kind, LayerKind.WEIGHT), **facts))
        every.append(Layer(path, kind=LayerKind.MODULE, group=path, module_type=kind, order=place))
    return LayerTable.of(every)


def remedied(types: tuple[str, ...], dtype: str, optimizer: dict[str, Any], evidence: tuple[Evidence, ...]) -> Any:
    program = Program.of([optimizer], layers(types, dtype))
    for one in conditions():
        if not one.remedies:
            continue
        for named in ((), ("layer0.weight",)):
            finding = found(one.code, *evidence, variant=one.variant, layers=named)
            yield from with_remedies(finding, program).remedies


def settings_of(code: str) -> dict[str, float]:
    """What the code sets in the optimizer: in its call, or in each of its groups."""
    found: dict[str, float] = {}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and "optim" in ast.unparse(node.func) and "scheduler" not in ast.unparse(node):
            found |= {word.arg: ast.literal_eval(word.value) for word in node.keywords if word.arg}
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("group["):
            name = ast.literal_eval(node.targets[0].slice)  # pyright: ignore[reportAttributeAccessIssue]
            if isinstance(node.value, (ast.Constant, ast.UnaryOp)):
                found[name] = ast.literal_eval(node.value)
    return found


KEEPS_THE_SETTINGS = {
    "build-the-optimizer-once", "tie-the-weights", "drop-unused-parameters", "decay-the-weights",
    "keep-parameters-in-a-list",
}  # fmt: skip


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda one: f"{one['type']}-{one['groups'][0]}")
def test_no_remedy_sets_what_is_set_or_speaks_of_what_is_not_there(name: str, optimizer: dict[str, Any]) -> None:
    types, (settings, *_) = ARCHITECTURES[name], optimizer["groups"]
    usual = {"momentum": 0, "weight_decay": 0.01 if optimizer["type"] == "AdamW" else 0, "eps": 1e-8}
    for dtype, evidence in product(("float32", "bfloat16"), EVIDENCE):
        for remedy in remedied(types, dtype, optimizer, evidence):
            told = settings_of(remedy.how)
            if told and remedy.id not in KEEPS_THE_SETTINGS:
                now = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
                same = {key: now.get(key) == value for key, value in told.items() if key in now}
                unsaid = {key: now.get(key) == usual[key] for key in usual if key in now and key not in told}
                is_rebuilt = "torch.optim" in remedy.how
                assert not all({**same, **(unsaid if is_rebuilt else {})}.values()), (remedy.id, remedy.how, settings)
            looked_for = re.findall(r"isinstance\(module, (.*?)\):", remedy.how)
            for kind in re.findall(r"torch\.nn\.(\w+)", " ".join(looked_for)):
                assert kind in types or not {"Linear", "Conv2d"} & set(types), (remedy.id, kind)
            if "weight_hh" in remedy.how:
                assert {"RNN", "LSTM"} & set(types), remedy.id
            if "not Sigmoid()" in remedy.how:
                assert not {"RNN", "LSTM", "GELU", "ReLU", "LeakyReLU"} & set(types), remedy.id
            if "BatchNorm" in remedy.what or "batch normalisation" in remedy.what:
                assert "BatchNorm2d" in types or name == "own", remedy.id
            if remedy.id == "decay-the-weights":
                assert not settings.get("weight_decay")
            if remedy.id == "keep-a-float32-master-copy":
                assert dtype != "float32"
            assert "ten times smaller" not in remedy.what


def first(finding: Finding, program: Program) -> tuple[str, str]:
    remedy = with_remedies(finding, program).remedies[0]
    return remedy.what, remedy.how


def adam(lr: float, width: int = 64, **more: Any) -> Program:
    table = LayerTable.of([Layer("fc.weight", kind=LayerKind.WEIGHT, shape=(width, width), module_type="Linear")])
    return Program.of([{"type": "Adam", "groups": [{"lr": lr, "betas": [0.9, 0.999], "eps": 1e-8, **more}]}], table)


def test_a_rate_to_try_is_computed_from_the_updates() -> None:
    high = found("OPT007", measured("update_ratio", 0.05, 0.01), measured("lr", 0.01), variant="learning-rate-too-high")
    what, how = first(high, adam(0.01))
    assert what == (
        "Restart from the last good checkpoint with a learning rate of 0.001, a tenth of what it is (updates are 5% of "
        "the weights per step, and 0.1% to 1% is usual)."
    )
    assert how == "optimizer = torch.optim.Adam(model.parameters(), lr=0.001)"
    low = found("UPD002", measured("update_ratio", 1e-6, 1e-3), variant="small-updates")
    assert "of 0.001, 1,000 times what it is" in first(low, adam(1e-6))[0]


def test_adam_is_never_left_at_a_rate_that_no_layer_of_this_width_bears() -> None:
    thrown = found("OPT001", measured("loss", 100.0, 2.0), variant="diverging-loss")
    narrow, wide = (first(thrown, adam(1.0, width))[1] for width in (64, 4096))
    assert "lr=0.001" in narrow
    assert "lr=2e-4" in wide
    sgd = Program.of([{"type": "SGD", "groups": [{"lr": 1.0, "momentum": 0.9}]}], LayerTable())
    assert "lr=0.1" in first(thrown, sgd)[1]


def test_where_no_rate_is_known_a_higher_one_is_no_lower_one() -> None:
    from undertow.detect.features.remedies import LOWER_LEARNING_RATE, RAISE_LEARNING_RATE

    assert Program.of([], LayerTable()).fill(LOWER_LEARNING_RATE).how.endswith('group["lr"] /= 10')
    assert Program.of([], LayerTable()).fill(RAISE_LEARNING_RATE).how.endswith('group["lr"] *= 10')


def test_several_groups_are_lowered_each_from_its_own_rate() -> None:
    groups = [{"lr": 0.1, "momentum": 0.9}, {"lr": 0.01, "momentum": 0.9}]
    high = found("UPD001", measured("update_ratio", 0.5, 0.01), variant="large-updates")
    _, how = first(high, Program.of([{"type": "SGD", "groups": groups}], LayerTable()))
    assert how == 'for group in optimizer.param_groups:\n    group["lr"] /= 100'


def test_of_a_diverged_training_no_absurd_rate_is_computed() -> None:
    sgd = Program.of([{"type": "SGD", "groups": [{"lr": 0.01, "momentum": 0}]}], LayerTable())
    diverged = found("OPT007", measured("update_ratio", 6e17, 0.01), variant="learning-rate-too-high")
    what, how = first(diverged, sgd)
    assert "of 1e-5, 1/1,000 of what it is (updates are more than 500% of the weights per step" in what
    assert "lr=1e-5" in how
    from_zero = found("OPT007", measured("update_ratio", 1e17, 0.01), variant="learning-rate-too-high")
    assert "lr=1e-5)" in first(from_zero, adam(1e-3))[1]
    stuck = found("UPD002", measured("update_ratio", 1e-12, 1e-3), variant="small-updates")
    assert "lr=1)" in first(stuck, sgd)[1]


@given(
    st.floats(1e-8, 100),
    st.none() | st.tuples(st.floats(1e-10, 1e3), st.none() | st.sampled_from([0.0, math.inf]) | st.floats(1e-10, 1e3)),
    st.none() | st.tuples(st.just(0.0) | st.floats(1e-14, 1e30), st.none() | st.floats(1e-6, 10)),
    st.none() | st.floats(1e-5, 0.1),
)
def test_lower_is_lower_and_higher_is_higher_in_numbers_and_in_words(
    now: float,
    rates: tuple[float, float | None] | None,
    updates: tuple[float, float | None] | None,
    first_step: float | None,
) -> None:
    named = (("lr", rates), ("update_ratio", updates))
    finding = found("OPT007", *(measured(name, *pair) for name, pair in named if pair is not None))
    now = rates[0] if rates is not None else now
    lower, higher = lower_rate(finding, now, first_step), higher_rate(finding, now, first_step)
    assert 0 < float(number(lower.rate)) < now < float(number(higher.rate)) < math.inf
    assert not re.search(r"e\+|\b1/1 of|\b1 times", f"{lower.how_much} {lower.why} {higher.how_much} {higher.why}")


def test_shares_are_written_as_people_write_them() -> None:
    assert [percent(share) for share in (0.004, 0.094, 0.0951, 0.0999, 0.5, 30)] == [
        "0.4%", "9%", "10%", "10%", "50%", "3,000%",
    ]  # fmt: skip


def test_clip_bounds_come_from_the_norms_that_were_measured() -> None:
    spike = found("GRD006", measured("gradient_norm_total", 900.0, 3.0), variant="gradient-spike")
    how = first(spike, Program())[1]
    assert "max_norm=6)" in how
    assert "norm > 30:" in how
    clipped = found("GRD010", measured("gradient_norm_total", 1e-3, 40.0), variant="over-clipping")
    assert "max_norm=80)" in first(clipped, Program())[1]
