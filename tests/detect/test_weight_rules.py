"""WGT001 to WGT006 on frames made by hand."""

from __future__ import annotations

import math

import pytest
from tests.detect.stacks import stack

from undertow.detect.rules.shrinking_weights import ShrinkingWeights
from undertow.detect.rules.weight_drift import WeightDrift

LINEARS = ("0:Linear", "1:Tanh", "2:Linear", "3:Tanh", "4:Linear", "5:Tanh", "6:Linear")
USUAL = 8**0.5  # the norm of an 8 × 8 matrix of scale 1


def scaled(**scales: float) -> dict[str, float]:
    """The frame of a first step: norms of weights with these scales, before an update that changed nothing."""
    return {f"{path[1:]}.weight": USUAL * scale for path, scale in scales.items()}


class TestShrinkingWeights:
    def decay(self, share: float, turn: float, steps: int, only: str = "", parts: str = "Linear Linear Linear"):
        """Each step takes `share` of the weights away and moves them by `turn` of their length sideways."""
        training = stack(ShrinkingWeights(), *(f"{number}:{part}" for number, part in enumerate(parts.split())))
        norm = 1.0
        for _ in range(steps):
            after, length = norm * (1 - share), norm * (share**2 + turn**2) ** 0.5
            norms = {f"{only}.weight": after} if only else after
            lengths = {f"{only}.weight": length} if only else length
            ratios = {f"{only}.weight": length / norm} if only else length / norm
            training.run(1, weight_norm=norms, update_norm=lengths, update_ratio=ratios)
            norm = after
        return training

    def test_decay_that_outweighs_the_gradient(self) -> None:
        (finding,) = self.decay(share=0.05, turn=0.01, steps=5).findings()
        assert (finding.code, finding.layers, finding.detected_step) == ("WGT005", (), 2)

    def test_a_penalty_that_turns_the_weights_too(self) -> None:
        assert self.decay(share=0.02, turn=0.02, steps=5).alarms() == ["WGT005"]
        assert self.decay(share=0.02, turn=0.05, steps=50).alarms() == []
        # As slow as this, what is learnt can shorten the weights as well: a code that a prior draws to zero.
        assert self.decay(share=0.005, turn=0.008, steps=50).alarms() == []

    def test_usual_decay_and_usual_learning(self) -> None:
        assert self.decay(share=1e-4, turn=0.01, steps=50).codes() == []
        assert self.decay(share=0.004, turn=0.02, steps=50).codes() == []

    def test_a_head_alone_shrinks_where_its_table_is_loud(self) -> None:
        assert self.decay(share=0.04, turn=0.01, steps=9, only="1", parts="Embedding Linear").codes() == []
        assert self.decay(share=0.04, turn=0.01, steps=9, parts="Embedding Linear").alarms() == ["WGT005"]

    def test_one_matrix_must_have_lost_two_thirds(self) -> None:
        assert self.decay(share=0.05, turn=0.01, steps=12, only="1").codes() == []
        (finding,) = self.decay(share=0.05, turn=0.01, steps=30, only="1").findings()
        assert finding.layers == ("1.weight",)

    @pytest.mark.parametrize(("decay", "found"), [(0.0, []), (40.0, [("norm.weight",)])])
    def test_scales_of_normalisations_may_be_learnt_to_be_small(
        self, decay: float, found: list[tuple[str, ...]]
    ) -> None:
        training, norm = stack(ShrinkingWeights(), "0:Linear", "norm:LayerNorm", "2:Linear"), 1.0
        for _ in range(6):
            training.run(1, weight_norm={"norm.weight": 0.7 * norm}, update_norm={"norm.weight": 0.3 * norm},
                         update_ratio={"norm.weight": 0.3}, optimizer_weight_decay={"norm.weight": decay},
                         optimizer_rate=0.01, streams=("weight", "update", "optimizer"))  # fmt: skip
            norm *= 0.7
        assert [finding.layers for finding in training.findings()] == found

    def test_ends(self) -> None:
        training = self.decay(share=0.05, turn=0.01, steps=6)
        assert not training.run(1).findings()[0].ongoing


class TestPressedToNothing:
    def test_weights_that_are_multiplied_by_something_small_between_steps(self) -> None:
        training, norm = stack(ShrinkingWeights(), "0:Linear", "1:Linear").run(3), 1.0
        for _ in range(4):
            norm *= 0.9  # before the step; the step itself changes no length
            training.run(1, weight_norm=norm, update_norm=1e-3 * norm)
        assert [(f.code, f.detected_step) for f in training.findings()] == [("WGT005", 5)]

    def test_first_answers_that_were_too_large_are_unlearnt(self) -> None:
        assert self.shrinking_while_the_loss_falls_to(0.9) == ["WGT005"]
        assert self.shrinking_while_the_loss_falls_to(0.2) == []

    def shrinking_while_the_loss_falls_to(self, share: float) -> list[str]:
        run = stack(ShrinkingWeights(), "0:Linear", "1:Linear")
        for step in range(45):
            norm = 0.99 ** max(step - 15, 0)
            loss = {"loss": 2.0 if step < 5 else 2.0 * share}
            if step <= 15:
                run.run(1, scalars=loss, weight_norm=norm)
                continue
            run.run(1, scalars=loss, weight_norm=norm, update_norm=0.01 * norm / 0.99, update_ratio=0.01)
        return run.codes()

    def test_weights_that_are_brought_back_to_their_length_do_not_shrink(self) -> None:
        training = stack(ShrinkingWeights(), "0:Linear", "1:Linear")
        assert training.run(20, weight_norm=1.03, update_norm=1e-3, update_ratio=1e-3).codes() == []

    def test_a_matrix_that_is_clamped_to_next_to_nothing(self) -> None:
        training = stack(ShrinkingWeights(), "0:Linear", "1:Linear").run(2)
        training.run(1, weight_norm={"1.weight": 1e-4})
        assert training.codes() == []
        (finding,) = training.run(1, weight_norm={"1.weight": 1e-4}).findings()
        assert (finding.code, finding.layers, finding.first_step) == ("WGT005", ("1.weight",), 2)
        assert not training.run(1).findings()[0].ongoing

    def test_a_matrix_that_starts_at_zero_and_biases_are_left_alone(self) -> None:
        training = stack(ShrinkingWeights(), "0:Linear").run(1, weight_norm={"0.weight": 0.0}, update_norm=0.0)
        small = {"0.weight": 1e-3, "0.bias": 1e-4}
        updates = {path: 1e-3 * norm for path, norm in small.items()}
        assert training.run(5, weight_norm=small, update_norm=updates).codes() == []


class TestWeightDrift:
    LAYERS = ("0:Linear", "1:Linear", "2:Linear", "head:Linear")

    def set_anew(self, *layers: str, times: int, every: int = 20, leap: float = 3.0) -> list[str]:
        """Weights whose norm before a step is not the one that the step before had left."""
        training, norms = stack(WeightDrift(), *self.LAYERS), dict.fromkeys((f"{n}.weight" for n in "012"), 1.0)
        for _ in range(times):
            training.run(every, scalars={"loss": 1.0}, weight_norm={**norms, "head.weight": 1.0})
            ratio = {f"{layer}.weight": 1e-3 / 1.2 for layer in layers}  # it was 1.2 before this step
            training.run(1, scalars={"loss": leap}, update_ratio=ratio, weight_norm=1.0)
        return [f"{f.code} {f.layers[0]} {f.detected_step}" for f in training.findings()]

    def test_a_head_that_is_set_anew_in_every_epoch(self) -> None:
        assert self.set_anew("head", times=4) == ["WGT006 head.weight 41"]

    def test_once_is_no_habit(self) -> None:
        assert self.set_anew("head", times=1) == []

    def test_weights_that_are_clamped_or_projected_at_every_step_are_healthy(self) -> None:
        assert self.set_anew("head", times=30, every=1) == []

    def test_without_a_leap_of_the_loss_it_does_no_harm(self) -> None:
        assert self.set_anew("head", times=4, leap=1.01) == []

    def test_a_model_that_is_set_anew_as_a_whole_is_another_run(self) -> None:
        assert self.set_anew("0", "1", "2", "head", times=4) == []

    TRAINED = {"loss_kind": 1.0, "loss_classes": 10.0, "output_accuracy": 0.95}  # noqa: RUF012

    def test_fine_tuning_that_forgets(self) -> None:
        training = stack(WeightDrift(), "0:Linear", "1:Linear").run(
            1, scalars={**self.TRAINED, "loss": 0.2}, weight_drift=0.1
        )
        training.run(15, scalars={"loss": 2.2}, weight_drift=0.8)
        (finding,) = training.findings()
        assert (finding.code, finding.layers) == ("WGT006", ())

    @pytest.mark.parametrize("labels", [{"label_entropy": 0.0}, {"label_entropy": math.log(10), "loss_rows": 10.0}])
    def test_pairs_that_are_alike_from_the_start_are_nothing_learnt_before(self, labels: dict[str, float]) -> None:
        training = stack(WeightDrift(), "0:Linear", "1:Linear").run(
            1, scalars={**self.TRAINED, **labels, "loss": 0.2}, weight_drift=0.1
        )
        assert training.run(15, scalars={"loss": 2.2}, weight_drift=0.8).codes() == []

    def test_far_from_a_random_start_is_healthy(self) -> None:
        training = stack(WeightDrift(), "0:Linear", "1:Linear")
        training.run(
            1, scalars={"loss_kind": 1.0, "loss_classes": 10.0, "output_accuracy": 0.1, "loss": 2.3}, weight_drift=0.1
        )
        assert training.run(30, scalars={"loss": 4.0}, weight_drift=3.0).codes() == []

    def test_a_copy_in_place_of_a_tied_weight(self) -> None:
        training = stack(WeightDrift(), "table:Embedding", "0:Linear", "head:Linear")
        norms = {"table.weight": 1.5, "0.weight": 2.0, "head.weight": 1.5}
        training.run(2, weight_norm=norms, update_norm=0.0, weight_drift=0.01)
        assert training.findings()[0].layers == ("head.weight", "table.weight")

    @pytest.mark.parametrize(("rate", "codes"), [(1e-3, ["WGT006"]), (2e-4, [])])
    def test_a_copy_with_a_rate_of_its_own_is_none_by_mistake(self, rate: float, codes: list[str]) -> None:
        training = stack(WeightDrift(), "table:Embedding", "0:Linear", "head:Linear")
        norms = {"table.weight": 1.5, "0.weight": 2.0, "head.weight": 1.5}
        rates = {"table.weight": 1e-3, "0.weight": 1e-3, "head.weight": rate}
        measured = {"weight_norm": norms, "update_norm": 0.0, "weight_drift": 0.01, "optimizer_rate": rates}
        training.run(2, streams=("weight", "update", "optimizer"), **measured)
        assert training.codes() == codes

    def test_a_copy_that_comes_in_place_of_a_tied_weight_while_training(self) -> None:
        training = stack(WeightDrift(), "table:Embedding", "head:Linear")
        nan = float("nan")
        for step in range(8):
            head = 1.0 + 0.1 * step if step > 4 else nan
            weights = {"table.weight": 1.0 + 0.1 * step, "head.weight": head}
            training.run(1, weight_norm=weights, update_norm=0.0, weight_drift=0.01)
        (finding,) = training.findings()
        assert (finding.code, finding.first_step) == ("WGT006", 5)

    def test_two_random_tables_differ(self) -> None:
        training = stack(WeightDrift(), "table:Embedding", "head:Linear")
        training.run(2, weight_norm={"table.weight": 1.5, "head.weight": 1.501}, update_norm=0.0, weight_drift=0.01)
        assert training.codes() == []

    def reload(self, scalars: dict[str, float], times: int = 2) -> list[str]:
        """Updates of a hundredth of the weight, and an old state every twenty steps."""
        training = stack(WeightDrift(), *self.LAYERS)
        for step in range(20 * times + 5):
            drift = 0.01 * (step % 20 + 1)
            again = scalars if step and step % 20 == 0 else {}
            training.run(1, scalars=again, weight_drift=drift, update_norm=0.01, update_ratio=0.01)
        return training.alarms()

    def test_a_whole_model_that_is_set_back_in_every_epoch(self) -> None:
        assert self.reload({}) == ["WGT006"]
        assert self.reload({}, times=1) == []

    def test_set_back_together_with_its_optimizer_is_another_fold(self) -> None:
        assert self.reload({"optimizer_made_anew": 1.0}) == []

    def test_set_back_under_optimizers_in_turn(self) -> None:
        """Frames in which the other one steps say nothing of who holds these layers."""
        training = stack(WeightDrift(), *self.LAYERS)
        for step in range(45):
            drift = 0.01 * (step % 20 + 1)
            holder = 0.0 if step % 2 == 0 else float("nan")
            training.run(1, gradient_optimizer=holder, weight_drift=drift, update_norm=0.01, update_ratio=0.01)
        assert training.alarms() == ["WGT006"]
