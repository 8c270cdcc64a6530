"""WGT005: weights shrink towards zero at every step, or next to nothing is left of them."""

from __future__ import annotations

import pytest
from tests.detect.building import Training
from tests.detect.stacks import stack

from undertow.detect.engine.registry import conditions_of

CONDITIONS = conditions_of("WGT005")


def decay(share: float, turn: float, steps: int, only: str = "", parts: str = "Linear Linear Linear") -> Training:
    """Each step takes `share` of the weights away and moves them by `turn` of their length sideways."""
    training = stack(CONDITIONS, *(f"{number}:{part}" for number, part in enumerate(parts.split())))
    norm = 1.0
    for _ in range(steps):
        after, length = norm * (1 - share), norm * (share**2 + turn**2) ** 0.5
        norms = {f"{only}.weight": after} if only else after
        lengths = {f"{only}.weight": length} if only else length
        ratios = {f"{only}.weight": length / norm} if only else length / norm
        training.run(1, weight_norm=norms, update_norm=lengths, update_ratio=ratios)
        norm = after
    return training


def test_decay_that_outweighs_the_gradient() -> None:
    (finding,) = decay(share=0.05, turn=0.01, steps=5).findings()
    assert (finding.code, finding.layers, finding.detected_step) == ("WGT005", (), 2)


def test_a_penalty_that_turns_the_weights_too() -> None:
    assert decay(share=0.02, turn=0.02, steps=5).alarms() == ["WGT005"]
    assert decay(share=0.02, turn=0.05, steps=50).alarms() == []
    # As slow as this, what is learnt can shorten the weights as well: a code that a prior draws to zero.
    assert decay(share=0.005, turn=0.008, steps=50).alarms() == []


def test_usual_decay_and_usual_learning() -> None:
    assert decay(share=1e-4, turn=0.01, steps=50).codes() == []
    assert decay(share=0.004, turn=0.02, steps=50).codes() == []


def test_a_head_alone_shrinks_where_its_table_is_loud() -> None:
    assert decay(share=0.04, turn=0.01, steps=9, only="1", parts="Embedding Linear").codes() == []
    assert decay(share=0.04, turn=0.01, steps=9, parts="Embedding Linear").alarms() == ["WGT005"]


def test_the_only_matrix_of_a_model_shrinks_where_its_gradient_says_so() -> None:
    """As that of a linear model whose loss is its own output, squared."""
    assert decay(share=0.02, turn=0.01, steps=9, parts="Linear").codes() == []


def test_one_matrix_must_have_lost_two_thirds() -> None:
    assert decay(share=0.05, turn=0.01, steps=12, only="1").codes() == []
    (finding,) = decay(share=0.05, turn=0.01, steps=30, only="1").findings()
    assert finding.layers == ("1.weight",)


@pytest.mark.parametrize(("decay", "found"), [(0.0, []), (40.0, [("norm.weight",)])])
def test_scales_of_normalisations_may_be_learnt_to_be_small(decay: float, found: list[tuple[str, ...]]) -> None:
    training, norm = stack(CONDITIONS, "0:Linear", "norm:LayerNorm", "2:Linear"), 1.0
    for _ in range(6):
        training.run(1, weight_norm={"norm.weight": 0.7 * norm}, update_norm={"norm.weight": 0.3 * norm},
                     update_ratio={"norm.weight": 0.3}, optimizer_weight_decay={"norm.weight": decay},
                     optimizer_rate=0.01, streams=("weight", "update", "optimizer"))  # fmt: skip
        norm *= 0.7
    assert [finding.layers for finding in training.findings()] == found


def test_ends() -> None:
    training = decay(share=0.05, turn=0.01, steps=6)
    assert not training.run(1).findings()[0].ongoing


def test_weights_that_are_multiplied_by_something_small_between_steps() -> None:
    training, norm = stack(CONDITIONS, "0:Linear", "1:Linear").run(3), 1.0
    for _ in range(4):
        norm *= 0.9  # before the step; the step itself changes no length
        training.run(1, weight_norm=norm, update_norm=1e-3 * norm)
    assert [(f.code, f.detected_step) for f in training.findings()] == [("WGT005", 5)]


def test_first_answers_that_were_too_large_are_unlearnt() -> None:
    assert shrinking_while_the_loss_falls_to(0.9) == ["WGT005"]
    assert shrinking_while_the_loss_falls_to(0.2) == []


def shrinking_while_the_loss_falls_to(share: float) -> list[str]:
    run = stack(CONDITIONS, "0:Linear", "1:Linear")
    for step in range(45):
        norm = 0.99 ** max(step - 15, 0)
        loss = {"loss": 2.0 if step < 5 else 2.0 * share}
        if step <= 15:
            run.run(1, scalars=loss, weight_norm=norm)
            continue
        run.run(1, scalars=loss, weight_norm=norm, update_norm=0.01 * norm / 0.99, update_ratio=0.01)
    return run.codes()


def test_weights_that_are_brought_back_to_their_length_do_not_shrink() -> None:
    training = stack(CONDITIONS, "0:Linear", "1:Linear")
    assert training.run(20, weight_norm=1.03, update_norm=1e-3, update_ratio=1e-3).codes() == []


CONDITIONS = conditions_of("WGT005")


def test_a_matrix_that_is_clamped_to_next_to_nothing() -> None:
    training = stack(CONDITIONS, "0:Linear", "1:Linear").run(2)
    training.run(1, weight_norm={"1.weight": 1e-4})
    assert training.codes() == []
    (finding,) = training.run(1, weight_norm={"1.weight": 1e-4}).findings()
    assert (finding.code, finding.layers, finding.first_step) == ("WGT005", ("1.weight",), 2)
    assert not training.run(1).findings()[0].ongoing


def test_a_matrix_that_starts_at_zero_and_biases_are_left_alone() -> None:
    training = stack(CONDITIONS, "0:Linear").run(1, weight_norm={"0.weight": 0.0}, update_norm=0.0)
    small = {"0.weight": 1e-3, "0.bias": 1e-4}
    updates = {path: 1e-3 * norm for path, norm in small.items()}
    assert training.run(5, weight_norm=small, update_norm=updates).codes() == []


def test_a_head_shrinks_by_its_gradient_where_its_inputs_tell_nothing() -> None:
    assert decay(share=0.04, turn=0.01, steps=40, only="2").alarms() == []
    assert decay(share=0.04, turn=0.01, steps=40, only="1").alarms() == ["WGT005"]
