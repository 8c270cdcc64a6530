"""Causes and consequences: the table, the ranking it gives, the chain that is told, and the place that is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undertow.detect.engine import Stage
from undertow.detect.engine.registry import conditions
from undertow.explain.diagnosis import explained
from undertow.explain.localisation import common_gate, located
from undertow.explain.ranking import Ranking
from undertow.explain.stages import BECAUSE, because
from undertow.schema import (
    Evidence,
    Finding,
    GraphNode,
    GraphSource,
    Layer,
    LayerGraph,
    LayerKind,
    LayerTable,
    Severity,
)
from undertow.schema.codes import CODES


def found(code: str, first: int = 0, detected: int | None = None, severity: str = "severe", **more: Any) -> Finding:
    facts: dict[str, Any] = {"layers": (), "last_step": 99, "ongoing": True, "confidence": 0.9, "summary": "", **more}
    return Finding(
        code, CODES[code], Severity(severity), first_step=first, detected_step=first if detected is None else detected,
        **facts,
    )  # fmt: skip


def ranked(*findings: Finding) -> list[Finding]:
    return explained(findings, LayerTable())


def told(*findings: Finding) -> list[tuple[str, str | None]]:
    return [(finding.code, finding.follows_from) for finding in ranked(*findings)]


def test_every_code_has_a_stage_and_every_stage_a_reason() -> None:
    assert set(BECAUSE) == {one.stage for one in conditions()} == set(Stage)
    assert all(why and not why.endswith(".") for why in BECAUSE.values())


@given(st.lists(st.tuples(st.sampled_from(sorted(CODES)), st.integers(0, 99), st.integers(0, 60)), max_size=8))
def test_nothing_brings_about_itself_by_way_of_others(facts: list[tuple[str, int, int]]) -> None:
    ranking = Ranking([found(code, first, first + wait) for code, first, wait in facts])
    assert all(place not in ranking._led_to(place) for place in range(len(facts)))


# What is found (code, first step, step of detection), and how it must be told: the first one is to be acted on.
SYMPTOMS = [
    # Raw inputs kill the units of the first layer (FAULTS 55).
    ([("ACT001", 0, 4), ("GRD004", 0, 9), ("OPT005", 0, 60), ("DAT001", 0, 0), ("UPD001", 2, 8)], "DAT001"),
    # A learning rate far too high (7, 38): dead units, exploding gradients, NaN in the end.
    ([("ACT001", 5, 20), ("GRD004", 6, 16), ("UPD001", 0, 6), ("OPT007", 2, 12), ("NUM002", 30, 30)], "OPT007"),
    ([("NUM002", 3, 3), ("NUM001", 3, 3), ("UPD001", 0, 3), ("OPT001", 1, 8)], "UPD001"),
    # Micro-batches added (22) and gradients never cleared (16) look like a rate that is too high.
    ([("UPD001", 0, 5), ("OPT007", 0, 9), ("LSS004", 0, 0), ("ACT001", 4, 30)], "LSS004"),
    ([("GRD002", 4, 20), ("UPD001", 9, 20), ("OPT001", 9, 30), ("GRD007", 1, 3)], "GRD007"),
    # Initialisation (2, 3, 4, 5).
    ([("GRD001", 0, 3), ("UPD002", 0, 10), ("OPT005", 0, 60), ("WGT003", 0, 1)], "WGT003"),
    ([("NUM002", 2, 2), ("GRD002", 0, 1), ("WGT003", 0, 0), ("ACT001", 0, 2)], "WGT003"),
    ([("GRD004", 0, 10), ("ACT003", 0, 6), ("WGT002", 0, 2), ("OPT005", 0, 60)], "WGT002"),
    # Deep sigmoids (1): the signal fades both ways.
    ([("ACT003", 0, 2), ("GRD001", 0, 4), ("OPT005", 0, 60)], "GRD001"),
    # Contracts of the loss (24, 25, 26), modes (27), optimizer settings (43, 44).
    ([("GRD001", 0, 5), ("OPT005", 0, 80), ("UPD002", 3, 9), ("LSS001", 0, 0)], "LSS001"),
    ([("OPT001", 10, 30), ("LSS003", 0, 0), ("NUM002", 60, 60)], "LSS003"),
    ([("OPT003", 101, 103), ("GRD006", 101, 101), ("MOD001", 100, 101)], "MOD001"),
    ([("ACT003", 8, 20), ("OPT005", 0, 60), ("WGT005", 3, 12), ("OPT008", 0, 2)], "OPT008"),
    ([("UPD002", 0, 10), ("OPT005", 0, 50), ("OPT008", 0, 1)], "OPT008"),
    # A bad batch (58), sorted batches (57), a router that chooses one expert (52).
    ([("OPT003", 40, 41), ("GRD006", 40, 40), ("DAT002", 40, 40)], "DAT002"),
    ([("OPT004", 10, 40), ("GRD005", 8, 30), ("DAT005", 0, 15)], "DAT005"),
    ([("GRD004", 2, 12), ("ACT005", 5, 9)], "ACT005"),
    # Clipping far too hard (34), and float16 without a loss scale (48).
    ([("UPD002", 0, 8), ("OPT005", 0, 60), ("GRD010", 0, 10)], "GRD010"),
    ([("GRD004", 0, 10), ("UPD002", 0, 9), ("NUM005", 0, 4)], "NUM005"),
    # Half precision overflows in the forward pass (49).
    ([("NUM002", 3, 3), ("NUM004", 3, 3), ("NUM001", 3, 3), ("NUM005", 3, 3)], "NUM005"),
    # Channels that fall silent take down what was learnt (6, late).
    ([("OPT001", 56, 92), ("GRD004", 60, 66)], "GRD004"),
    # Weight decay that begins late.
    ([("UPD001", 60, 63), ("OPT001", 60, 99), ("ACT003", 84, 96), ("WGT005", 60, 74)], "WGT005"),
]


@pytest.mark.parametrize(("given_", "cause"), SYMPTOMS)
def test_the_cause_comes_first_and_all_else_follows_from_it(given_: list[tuple[str, int, int]], cause: str) -> None:
    for findings in (given_, given_[::-1]):
        result = told(*(found(*facts) for facts in findings))
        assert result[0] == (cause, None)
        assert {follows for _, follows in result[1:]} == {cause}


def test_weights_that_grow_are_no_cause() -> None:
    assert told(found("GRD009", 0, 9, "moderate"), found("WGT001", 4, 63, variant="growing"))[0][0] == "GRD009"


def test_a_training_that_cannot_learn_says_nothing_of_its_data() -> None:
    assert told(found("DAT004", 0, 120, "moderate", confidence=0.5), found("MOD002")) == [
        ("MOD002", None),
        ("DAT004", "MOD002"),
    ]


def test_a_leap_of_the_loss_in_a_training_that_diverges_is_no_bad_batch() -> None:
    guess = found("DAT002", 53, 53, confidence=0.6)
    assert dict(told(guess, found("GRD007", 1, 3), found("UPD001", 8, 20)))["DAT002"] == "GRD007"
    assert dict(told(guess, found("UPD001", 55, 60)))["UPD001"] == "DAT002"


def test_after_a_value_that_is_not_finite_nothing_else_is_a_cause() -> None:
    assert told(found("OPT007", 41, 42), found("NUM001", 40, 40, "critical"), found("NUM003", 40, 40, "critical")) == [
        ("NUM001", None), ("NUM003", "NUM001"), ("OPT007", "NUM001"),
    ]  # fmt: skip


def test_two_independent_causes_stay_two() -> None:
    assert told(found("UPD003", 0, 4), found("DAT005", 0, 20)) == [("UPD003", None), ("DAT005", None)]
    # A certain one goes before one that is only likely, though that one is worse.
    assert told(found("OPT007", 0, 9), found("LSS002", 0, 0, "moderate"))[0] == ("LSS002", None)
    # A forgotten layer is no consequence of whatever else goes wrong.
    result = dict(told(found("UPD001", 0, 5), found("UPD003", 0, 4), found("ACT001", 5, 9)))
    assert result == {"UPD003": None, "UPD001": None, "ACT001": "UPD001"}


def test_the_same_layers_or_not() -> None:
    zero = found("GRD004", 0, 10, layers=("a.weight",))
    forgotten = {"variant": "outside", "layers": ("a.weight",)}
    assert told(zero, found("UPD003", 0, 12, **forgotten))[1] == ("GRD004", "UPD003")
    assert all(follows is None for _, follows in told(zero, found("UPD003", 0, 12, **forgotten | {"layers": ("b.c",)})))


@pytest.mark.parametrize("variant", ["outside", "still"])
def test_what_is_not_trained_follows_from_nothing(variant: str) -> None:
    """Where an update is only too small for the number format, that is a remark, which explains nothing."""
    for other in (found("WGT003", 0), found("OPT007", 0, 11)):
        assert told(other, found("UPD003", 0, 6, variant=variant))[0] == ("UPD003", None)


def test_a_group_of_its_own_rate_explains_the_steps_of_all() -> None:
    slow = found("UPD002", 0, 4, "moderate", variant="slow-group", layers=("a",))
    first, second = ranked(found("UPD002", 0, 9, variant="small-updates"), slow)
    assert (first.variant, second.variant, second.follows_from) == ("slow-group", "small-updates", "UPD002")


def test_a_weight_that_is_enormous_all_at_once_is_a_cause_and_one_left_over_is_none() -> None:
    flipped = found("WGT004", 83, 88, layers=("2.weight",))
    assert told(found("OPT003", 80, 80, "moderate", last_step=80), found("GRD002", 84, 90), flipped)[0][0] == "WGT004"
    assert told(found("WGT004", 141, 147, "moderate"), found("ACT003", 0, 4))[1] == ("WGT004", "ACT003")


def test_against_the_order_of_stages_only_what_was_certain_before_is_a_cause() -> None:
    assert dict(told(found("OPT001", 5, 30), found("ACT001", 31, 40)))["ACT001"] == "OPT001"
    assert dict(told(found("OPT001", 5, 31), found("ACT001", 31, 40)))["ACT001"] is None
    # A training that learns nothing, or a leap of the loss, brings about nothing.
    assert dict(told(found("OPT005", 0, 30), found("ACT001", 31, 40)))["ACT001"] is None
    assert dict(told(found("OPT003", 30, 30), found("ACT001", 31, 40)))["ACT001"] is None


def test_a_factor_that_no_optimizer_holds_leaves_its_partner_without_a_gradient() -> None:
    held = (Evidence("gradient_optimizer", "a.up", -1.0, 0.0, "no optimizer holds it"),)
    forgotten = found("UPD003", 0, 4, layers=("a.up", "b.up"), evidence=held)
    assert told(found("GRD004", 0, 9, layers=("b.down", "a.down")), forgotten) == [
        ("UPD003", None),
        ("GRD004", "UPD003"),
    ]
    elsewhere = ranked(found("GRD004", 0, 9, layers=("c.weight",)), forgotten)
    assert {finding.follows_from for finding in elsewhere} == {None}


def test_a_code_that_fades_makes_answers_fit_any_target() -> None:
    faded = found("ACT003", 120, 135, layers=("encoder",), confidence=0.9)
    assert told(found("DAT004", 106, 151), faded)[0] == ("ACT003", None)


def test_what_came_before_does_not_follow() -> None:
    assert dict(told(found("ACT001", 10, 20), found("UPD001", 400, 405)))["ACT001"] is None
    # An event of a moment explains what begins soon after it, no more.
    batch = found("DAT002", 40, 40, last_step=41)
    assert dict(told(batch, found("OPT001", 60, 80)))["OPT001"] == "DAT002"
    assert dict(told(batch, found("OPT001", 600, 620)))["OPT001"] is None


def test_a_rate_too_high_explains_dead_units() -> None:
    high = found("OPT007", 0, 9, variant="high")
    assert dict(told(high, found("ACT001", 5, 30))) == {"OPT007": None, "ACT001": "OPT007"}


def test_remarks_are_never_causes_and_come_last() -> None:
    assert told(found("DAT001", 0, 0, "mild"), found("ACT001", 0, 5)) == [("ACT001", None), ("DAT001", None)]
    assert [code for code, _ in told(found("UPD004", 0, 0, "info"), found("OPT002", 9, 50, "mild"))] == [
        "OPT002", "UPD004",
    ]  # fmt: skip


def test_the_cause_tells_what_it_led_to_in_the_order_it_came() -> None:
    first, *_ = ranked(
        found("UPD001", 0, 6), found("NUM002", 30, 30), found("ACT001", 5, 20, layers=("relu",)), found("OPT007", 0, 9)
    )
    chain = [evidence for evidence in first.evidence if evidence.quantity == "consequence"]
    assert [evidence.how.split()[2] for evidence in chain] == ["UPD001", "ACT001", "NUM002"]
    assert chain[1].layer == "relu"
    assert because(found("OPT007"), found("ACT001")) in chain[1].how


@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(CODES)), st.integers(0, 60), st.integers(0, 60), st.sampled_from(list(Severity))
        ),
        min_size=1,
        max_size=12,
    )
)
def test_any_findings_have_a_cause_and_no_circle(facts: Sequence[tuple[str, int, int, Severity]]) -> None:
    findings = [found(code, first, first + late, severity, layers=("a",)) for code, first, late, severity in facts]
    ranking = Ranking(findings)
    order = ranking.in_order()
    assert sorted(order) == list(range(len(findings)))
    assert ranking.root_of(order[0]) is None
    alarms = [finding.severity.is_alarm for finding in (findings[place] for place in order)]
    assert alarms == sorted(alarms, reverse=True)
    for place in order:
        root = ranking.root_of(place)
        assert root is None or (ranking.root_of(root) is None and order.index(root) < order.index(place))


def graph_of(edges: Sequence[tuple[int, int]], names: Sequence[str]) -> LayerGraph:
    nodes = tuple(GraphNode(i, name, is_merge=not name) for i, name in enumerate(names))
    return LayerGraph(nodes, tuple(edges), GraphSource.AUTOGRAD)


# stem → (left, right) → (joined) → neck → (one, two) → (joined) → head
DIAMONDS = graph_of(
    [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (4, 5), (4, 6), (5, 7), (6, 7), (7, 8)],
    ["stem", "left", "right", "", "neck", "one", "two", "", "head"],
)


@pytest.mark.parametrize(
    ("modules", "toward_loss", "gate"),
    [
        (("one", "two"), False, "neck"),
        (("one", "two"), True, "head"),
        (("left", "right"), False, "stem"),
        (("left", "right"), True, "neck"),
        (("left", "one"), False, "stem"),
        (("neck", "one", "two", "head"), False, "neck"),  # one of them explains the others
        (("stem", "left", "right", "neck"), True, "neck"),
        (("stem", "unknown"), False, None),
        (("stem",), True, None),
    ],
)
def test_the_gate_that_all_ways_lead_through(modules: tuple[str, ...], toward_loss: bool, gate: str | None) -> None:
    assert common_gate(modules, DIAMONDS, toward_loss=toward_loss) == gate


def test_a_guessed_graph_places_nothing() -> None:
    guess = LayerGraph(DIAMONDS.nodes, DIAMONDS.edges, GraphSource.CALL_ORDER)
    assert common_gate(("one", "two"), guess, toward_loss=False) is None


def test_the_place_that_explains_the_others_is_named() -> None:
    table = LayerTable.of([Layer(f"{node.path}.weight", kind=LayerKind.WEIGHT, group=node.path)
                           for node in DIAMONDS.nodes if node.path])  # fmt: skip
    cut = located(found("GRD004", layers=("left.weight", "right.weight")), table, DIAMONDS)
    assert cut.layers == ("left.weight", "right.weight")  # its rule knows the order
    assert (cut.evidence[-1].quantity, cut.evidence[-1].layer) == ("place", "neck")
    bad = located(found("NUM004", layers=("two.weight", "neck.weight", "one.weight")), table, DIAMONDS)
    assert bad.layers[0] == "neck.weight"
    assert sorted(bad.layers) == ["neck.weight", "one.weight", "two.weight"]
    for same in (found("OPT007"), found("GRD004", layers=("left.weight",)), found("NUM004", severity="mild")):
        assert located(same, table, DIAMONDS) is same


def test_where_most_is_frozen_what_is_trained_made_the_loss_leap() -> None:
    sizes = {"base": (1000, False), "down": (30, True), "up": (30, True)}
    table = LayerTable.of([Layer(f"{name}.weight", kind=LayerKind.WEIGHT, parameter_count=count, trainable=trainable)
                           for name, (count, trainable) in sizes.items()])  # fmt: skip
    assert located(found("OPT003"), table, DIAMONDS).layers == ("down.weight", "up.weight")
    rate = found("OPT007")  # a cause of its own, and global
    assert located(rate, table, DIAMONDS) is rate
    whole = LayerTable.of([Layer("base.weight", kind=LayerKind.WEIGHT, parameter_count=1000)])
    assert located(found("OPT003"), whole, DIAMONDS).layers == ()


def test_ten_thousand_layers_are_placed_at_once() -> None:
    count = 10_000
    chain = graph_of([(i, i + 1) for i in range(count - 1)], [f"layers.{i}" for i in range(count)])
    assert common_gate([f"layers.{i}" for i in range(count)], chain, toward_loss=False) == "layers.0"
    assert common_gate([f"layers.{i}" for i in range(count)], chain, toward_loss=True) == f"layers.{count - 1}"


@pytest.mark.parametrize(
    ("zero_found", "first"), [(9, "GRD004"), (60, "DAT003")], ids=["known before the harm", "after it"]
)
def test_a_contract_that_was_known_to_be_broken_does_the_harm_that_targets_are_told_by(
    zero_found: int, first: str
) -> None:
    """Large targets are learnt well by most models: that the loss does not fall has another reason, if one is known."""
    targets = found("DAT003", 0, 40, variant="unscaled-targets")
    zero = found("GRD004", 0, zero_found, variant="zero-gradient", layers=("policy.0.weight",))
    assert ranked(targets, zero)[0].code == first


def test_data_that_change_their_scale_explain_the_first_odd_batch() -> None:
    batch = found("DAT002", 15000, variant="bad-batch")
    shift = found("DAT001", 15000, 15005, "moderate", variant="input-shift")
    assert told(batch, shift) == [("DAT001", None), ("DAT002", "DAT001")]


def test_outputs_that_become_alike_follow_from_targets_that_nothing_tells() -> None:
    alike = found("ACT003", 16, 190, "moderate", variant="collapsed-representation")
    unrelated = found("DAT004", 0, 120, "moderate", variant="unrelated-targets")
    assert told(alike, unrelated) == [("DAT004", None), ("ACT003", "DAT004")]
