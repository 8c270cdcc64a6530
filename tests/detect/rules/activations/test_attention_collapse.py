"""ACT004 attention-collapse."""

from __future__ import annotations

from tests.detect.stacks import stack

from undertow.detect.rules.activations.attention_collapse import AttentionCollapse


def test_one_block() -> None:
    training = stack(AttentionCollapse, "0:Linear", "1:Linear")
    fine = {"attention_logit_max": 5.0, "attention_entropy": 0.7}
    training.run(2, **fine)
    training.run(3, attention_logit_max={"0": 5.0, "1": 90.0}, attention_entropy=0.5)
    (finding,) = training.findings()
    assert (finding.code, finding.layers, finding.first_step) == ("ACT004", ("1",), 2)
    assert not training.run(1, **fine).findings()[0].ongoing


def test_entropy_alone() -> None:
    training = stack(AttentionCollapse, "0:Linear", "1:Linear")
    training.run(3, attention_logit_max=30.0, attention_entropy={"0": 0.001, "1": 0.5})
    assert training.findings()[0].layers == ("0",)


def test_a_solution_that_looks_at_one_place() -> None:
    training = stack(AttentionCollapse, "0:Linear", "1:Linear")
    for step in range(20):
        sharp = {"attention_logit_max": 25.0, "attention_entropy": 0.5 * 0.7**step}
        training.run(1, scalars={"loss": 2.0 * 0.7**step}, **sharp)
    assert training.codes() == []


def test_logits_that_grow_when_all_is_learnt() -> None:
    training = stack(AttentionCollapse, "0:Linear", "1:Linear")
    for step in range(20):
        training.run(1, scalars={"loss": 2.0 * 0.7**step}, attention_logit_max=5.0 * 1.3**step)
    assert training.codes() == []


def test_logits_that_are_large_before_stay_a_finding() -> None:
    training = stack(AttentionCollapse, "0:Linear", "1:Linear")
    for step in range(20):
        training.run(1, scalars={"loss": 2.0 * 0.7**step}, attention_logit_max={"0": 5.0, "1": 90.0})
    assert training.findings()[0].ongoing


def test_all_blocks_are_no_block() -> None:
    training = stack(AttentionCollapse, "0:Linear", "1:Linear").run(9, attention_logit_max=5.0)
    training.run(3, attention_logit_max=500.0)
    assert training.findings()[0].layers == ()


def test_all_blocks_before_anything_was_learnt_are_written_like_that() -> None:
    training = stack(AttentionCollapse, "0:Linear", "1:Linear").run(3, attention_logit_max=500.0)
    assert training.findings()[0].layers == ("0", "1")


def test_logits_that_grow_when_all_is_learnt_and_undo_it_are_dated_from_where_they_grew() -> None:
    training = stack(AttentionCollapse, "0:Linear", "1:Linear")
    for step in range(20):
        training.run(1, scalars={"loss": 2.0 * 0.7**step}, attention_logit_max=5.0)
    for _ in range(10):
        training.run(1, scalars={"loss": 0.002}, attention_logit_max={"0": 5.0, "1": 90.0})
    assert training.codes() == []
    for step in range(10):
        training.run(1, scalars={"loss": 0.05 * (1 + step)}, attention_logit_max={"0": 5.0, "1": 90.0})
    (finding,) = training.findings()
    assert (finding.layers, finding.first_step) == (("1",), 20)
