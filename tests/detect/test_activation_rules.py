"""ACT001 to ACT005 on frames made by hand: when they speak, when they end, when they must stay silent."""

from __future__ import annotations

import pytest
from tests.detect.stacks import stack

from undertow.detect.rules.attention_collapse import AttentionCollapse
from undertow.detect.rules.collapsed_representation import CollapsedRepresentation
from undertow.detect.rules.dead_units import DeadUnits
from undertow.detect.rules.router_collapse import RouterCollapse
from undertow.detect.rules.saturated import Saturated
from undertow.schema.graph import GraphSource, LayerGraph
from undertow.schema.severity import Severity

RELUS = ("0:Linear", "1:ReLU", "2:Linear", "3:ReLU", "4:Linear")
ALIVE = {"activation_zero_fraction": 0.5, "activation_dead_fraction": 0.1}


class TestDeadUnits:
    def test_names_the_layer_that_kills_and_its_relu(self) -> None:
        training = stack(DeadUnits(), *RELUS).run(3, **ALIVE)
        assert training.codes() == []
        training.run(2, activation_zero_fraction={"1": 0.5, "3": 1.0}, activation_dead_fraction=0.1)
        (finding,) = training.findings()
        assert (finding.code, finding.layers, finding.first_step) == ("ACT001", ("2", "3"), 3)
        assert finding.severity is Severity.SEVERE

    def test_the_first_dead_layer_is_the_culprit(self) -> None:
        training = stack(DeadUnits(), *RELUS).run(4, activation_zero_fraction=1.0)
        assert training.findings()[0].layers == ("0", "1")

    def test_ends_when_units_speak_again(self) -> None:
        training = stack(DeadUnits(), *RELUS).run(3, activation_zero_fraction=1.0).run(1, **ALIVE)
        assert [finding.ongoing for finding in training.findings()] == [False]

    def test_one_empty_batch_is_not_enough(self) -> None:
        training = stack(DeadUnits(), *RELUS).run(1, activation_zero_fraction=1.0).run(5, **ALIVE)
        assert training.codes() == []

    def test_sparse_but_alive_is_healthy(self) -> None:
        training = stack(DeadUnits(), *RELUS)
        training.run(40, scalars={"loss_rows": 64.0}, activation_zero_fraction=0.95, activation_dead_fraction=0.6)
        assert training.codes() == []

    def test_nine_of_ten_units_silent_for_a_thousand_samples(self) -> None:
        training = stack(DeadUnits(), *RELUS)
        for frame in range(10):  # now and then another one speaks
            dead = {"1": 0.1, "3": 0.99 - 0.005 * frame}
            training.run(1, scalars={"loss_rows": 100.0}, activation_zero_fraction=0.97, activation_dead_fraction=dead)
        (finding,) = training.findings()
        assert (finding.layers, finding.severity) == (("2", "3"), Severity.MODERATE)
        assert finding.detected_step == 9

    def test_units_that_none_of_many_samples_wakes(self) -> None:
        training = stack(DeadUnits(), *RELUS)
        silent = {"activation_zero_fraction": 0.97, "activation_dead_fraction": {"1": 0.1, "3": 0.94}}
        training.run(5, scalars={"loss_rows": 48.0}, **silent)
        assert training.codes() == []
        training.run(1, scalars={"loss_rows": 48.0}, **silent)
        (finding,) = training.findings()
        assert (finding.layers, finding.detected_step) == (("2", "3"), 5)

    @pytest.mark.parametrize(("bias", "codes"), [(-9.0, ["ACT001"]), (-0.5, [])])
    def test_outputs_that_biases_hold_down(self, bias: float, codes: list[str]) -> None:
        training = stack(DeadUnits(), *RELUS)
        measured = {"activation_zero_fraction": {"3": 0.97}, "activation_dead_fraction": 0.0, "activation_std": 0.8}
        biases = {"weight_mean": {"2.bias": 0.8 * bias}, "weight_max_abs": {"2.bias": abs(bias)}}
        training.run(2, **measured, **biases, activation_sample_spread=0.5)
        assert training.codes() == codes

    def test_the_number_of_samples_is_remembered(self) -> None:
        training = stack(DeadUnits(), *RELUS)
        dead = {"activation_zero_fraction": 0.97, "activation_dead_fraction": 0.94}
        training.run(1, scalars={"loss_rows": 100.0}, **dead).run(9, **dead)
        assert training.codes() == ["ACT001"]

    def test_without_the_number_of_samples_it_waits_for_twenty_steps(self) -> None:
        training = stack(DeadUnits(), *RELUS)
        training.run(19, activation_zero_fraction=0.97, activation_dead_fraction=0.95)
        assert training.codes() == []
        assert training.run(1, activation_zero_fraction=0.97, activation_dead_fraction=0.95).codes() == ["ACT001"]

    def test_a_relu_on_the_logits_is_named_before_its_layer(self) -> None:
        training = stack(DeadUnits(), "0:Linear", "1:ReLU", "2:Linear", "3:ReLU")
        training.run(
            3, scalars={"loss_kind": 1.0}, activation_zero_fraction={"3": 1.0}, activation_dead_fraction={"3": 1.0}
        )
        assert training.findings()[0].layers == ("3", "2")

    def test_logits_that_come_out_of_a_relu(self) -> None:
        training = stack(DeadUnits(), "0:Linear", "1:ReLU", "2:Linear")
        training.run(1, scalars={"loss_input_is_rectified": 1.0}).run(1, scalars={"loss_input_is_rectified": 0.0})
        assert training.codes() == []
        training.run(2, scalars={"loss_input_is_rectified": 1.0})
        (finding,) = training.findings()
        assert (finding.layers, finding.severity, finding.first_step) == (("2",), Severity.MODERATE, 2)

    def test_a_content_hinge_is_healthy(self) -> None:
        training = stack(DeadUnits(), "0:Linear", "1:ReLU", "2:Linear", "3:ReLU")
        training.run(
            5, scalars={"loss_kind": 0.0}, activation_zero_fraction={"3": 1.0}, activation_dead_fraction={"3": 1.0}
        )
        assert training.codes() == []

    def test_leaky_units_and_dropouts_are_not_judged(self) -> None:
        training = stack(DeadUnits(), "0:Linear", "1:LeakyReLU", "2:Dropout", "3:Linear")
        assert training.run(5, activation_zero_fraction=1.0).codes() == []

    def test_a_relu_without_a_module_is_told_by_its_layer(self) -> None:
        training = stack(DeadUnits(), "a:Linear", "b:Linear", "c:Linear")
        training.run(2, activation_zero_fraction=0.0, activation_dead_fraction={"a": 0.1, "b": 1.0, "c": 0.0})
        (finding,) = training.findings()
        assert (finding.layers, finding.severity) == (("b",), Severity.SEVERE)
        assert "the ReLU behind b" in finding.summary

    def test_a_layer_that_starts_at_zero_has_no_dead_units(self) -> None:
        training = stack(DeadUnits(), "a:Linear", "b:Linear", "c:Linear")
        training.run(30, activation_zero_fraction={"b": 1.0}, activation_dead_fraction={"b": 1.0})
        assert training.codes() == []


class TestSaturated:
    def test_names_hidden_functions_and_what_feeds_them(self) -> None:
        training = stack(Saturated(), "0:Linear", "1:Tanh", "2:Linear", "3:Tanh", "4:Linear")
        training.run(2, activation_saturated_fraction=0.1)
        training.run(1, activation_saturated_fraction={"1": 0.9, "3": 0.2})
        assert training.codes() == []
        training.run(1, activation_saturated_fraction={"1": 0.9, "3": 0.2})
        (finding,) = training.findings()
        assert (finding.code, finding.layers, finding.first_step) == ("ACT002", ("0", "1"), 2)
        training.run(1, activation_saturated_fraction=0.1)
        assert not training.findings()[0].ongoing

    def test_units_may_decide_when_nearly_all_is_learnt(self) -> None:
        training = stack(Saturated(), "0:Linear", "1:Tanh", "2:Linear")
        training.run(9, scalars={"loss": 1.0}, activation_saturated_fraction=0.1)
        training.run(12, scalars={"loss": 0.01}, activation_saturated_fraction=0.1)
        assert training.run(9, scalars={"loss": 0.01}, activation_saturated_fraction=0.9).codes() == []

    def test_a_function_without_a_module_is_told_by_its_layer(self) -> None:
        training = stack(Saturated(), "a:Linear", "b:Linear", "c:Linear")
        training.run(2, activation_saturated_fraction={"b": 0.9})
        (finding,) = training.findings()
        assert finding.layers == ("b",)
        assert "the functions behind b" in finding.summary

    def test_the_last_function_may_saturate(self) -> None:
        training = stack(Saturated(), "0:Linear", "1:Tanh", "2:Linear", "3:Sigmoid")
        assert training.run(9, activation_saturated_fraction={"3": 0.99}).codes() == []


class TestCollapsedRepresentation:
    def test_a_code_that_tells_nothing_for_long(self):
        training = stack(CollapsedRepresentation(), "encoder:Linear", "mean:Linear", "decoder:Linear")
        training.run(40, latent_nats={"mean": 0.001})
        assert training.codes() == []
        (finding,) = training.run(1, latent_nats={"mean": 0.001}).findings()
        assert (finding.code, finding.layers, finding.first_step) == ("ACT003", ("mean",), 0)

    def test_a_code_that_tells_little_is_one(self):
        training = stack(CollapsedRepresentation(), "encoder:Linear", "mean:Linear", "decoder:Linear")
        training.run(30, latent_nats={"mean": 0.001})
        training.run(1, latent_nats={"mean": 0.2})
        assert training.run(30, latent_nats={"mean": 0.001}).codes() == []

    def test_a_code_that_falls_silent_after_it_had_told_something(self):
        training = stack(CollapsedRepresentation(), "encoder:Linear", "mean:Linear", "decoder:Linear")
        training.run(9, scalars={"loss": 1.0}, latent_nats={"mean": 2.0})
        training.run(12, scalars={"loss": 0.5}, latent_nats={"mean": 3.0})
        training.run(12, scalars={"loss": 0.9}, latent_nats={"mean": 0.001})
        assert training.codes() == []
        (finding,) = training.run(1, scalars={"loss": 0.9}, latent_nats={"mean": 0.001}).findings()
        assert (finding.code, finding.layers, finding.first_step) == ("ACT003", ("mean",), 21)

    @pytest.mark.parametrize(("entering", "found"), [(1.0, ["ACT003"]), (0.2, [])])
    def test_samples_that_come_in_alike_go_out_alike(self, entering: float, found: list[str]) -> None:
        training = stack(CollapsedRepresentation(), "a:Linear", "b:Linear", "c:Linear")
        training.run(3, scalars={"input_std": 1.0}, activation_std=1.0, activation_sample_spread=0.8)
        training.run(30, scalars={"input_std": entering}, activation_std=0.18, activation_sample_spread=0.8)
        assert training.codes() == found

    @pytest.mark.parametrize(("later", "found"), [("lr_1", []), ("lr_0", ["ACT003"])])
    def test_steps_of_another_optimizer_are_compared_with_their_own(self, later: str, found: list[str]) -> None:
        training = stack(CollapsedRepresentation(), "a:Linear", "b:Linear", "c:Linear")
        training.run(3, scalars={"lr_0": 1e-3}, activation_std=1.0, activation_sample_spread=0.8)
        training.run(30, scalars={later: 1e-3}, activation_std=0.1, activation_sample_spread=0.8)
        assert training.codes() == found

    def test_a_code_that_the_decoder_ignores(self) -> None:
        training = stack(CollapsedRepresentation(), "encoder:Linear", "code:Linear", "decoder:Linear")
        training.run(3, activation_std=1.0, activation_sample_spread=0.8)
        collapsed = {"encoder": 0.4, "code": 0.18, "decoder": 0.3}
        training.run(9, activation_std=collapsed, activation_sample_spread=0.8)
        assert training.codes() == []
        training.run(6, activation_std=collapsed, activation_sample_spread=0.8)
        (finding,) = training.findings()
        assert (finding.code, finding.layers, finding.first_step) == ("ACT003", ("code",), 3)

    @pytest.mark.parametrize(("steps", "found"), [(100, []), (200, ["ACT003"])])
    def test_a_classifier_may_guess_for_long_before_it_learns(self, steps: int, found: list[str]) -> None:
        training = stack(CollapsedRepresentation(), "a:Linear", "b:Linear", "head:Linear")
        one, two = {"loss": 1.4, "loss_kind": 1.0}, {"loss": 1.8, "loss_kind": 0.0}  # now and then with a second term
        training.run(1, scalars=one, activation_std=1.0, activation_sample_spread=0.2)
        for step in range(steps):
            training.run(1, scalars=two if step % 4 else one, activation_std=0.3, activation_sample_spread=1e-3)
        assert training.codes() == found

    @pytest.mark.parametrize(("kind", "found"), [(3.0, []), (0.0, ["ACT003"])])
    def test_outputs_alone_shrink_to_their_targets_where_there_are_any(self, kind: float, found: list[str]) -> None:
        training = stack(CollapsedRepresentation(), "a:Linear", "head:Linear")
        training.run(1, activation_std=1.0, activation_sample_spread=0.8)
        shrunk = {"a": 0.9, "head": 0.05}
        training.run(30, scalars={"loss_kind": kind}, activation_std=shrunk, activation_sample_spread=0.8)
        assert training.codes() == found

    @pytest.mark.parametrize(("steps", "found"), [(100, []), (200, ["ACT003"])])
    def test_the_mean_of_all_targets_comes_before_what_tells_them_apart(self, steps: int, found: list[str]) -> None:
        training = stack(CollapsedRepresentation(), "a:Linear", "head:Linear")
        training.run(1, activation_std=1.0, activation_sample_spread=0.8)
        few = {"a": 0.4, "head": 1e-3}
        training.run(steps, scalars={"loss_kind": 3.0}, activation_std=few, activation_sample_spread=few)
        assert training.codes() == found

    def test_a_small_layer_of_a_model_that_learns_is_healthy(self) -> None:
        training = stack(CollapsedRepresentation(), "encoder:Linear", "code:Linear", "decoder:Linear")
        training.run(1, activation_std=1.0, activation_sample_spread=0.8)
        training.run(30, activation_std={"encoder": 0.4, "code": 0.08, "decoder": 3.0}, activation_sample_spread=0.8)
        assert training.codes() == []

    def test_a_single_sample_says_nothing(self) -> None:
        training = stack(CollapsedRepresentation(), "a:Linear", "b:Linear")
        training.run(1, activation_std=1.0, activation_sample_spread=0.8)
        assert training.run(30, activation_std=1.0, activation_sample_spread=0.0).codes() == []

    def test_the_same_output_with_a_deviation_within(self) -> None:
        training = stack(CollapsedRepresentation(), "encoder:Linear", "decoder:Linear")
        training.run(1, activation_std=1.0, activation_sample_spread=0.8)
        training.run(20, activation_std=1.0, activation_sample_spread={"encoder": 1e-5, "decoder": 0.8})
        assert training.findings()[0].layers == ("encoder",)

    def test_a_language_model_that_learns_the_frequent_words_first_is_healthy(self) -> None:
        training = stack(CollapsedRepresentation(), "a:Linear", "b:Linear")
        training.run(1, activation_std={"a": 0.06, "b": 0.08}, activation_sample_spread={"a": 0.12, "b": 0.016})
        training.run(30, activation_std={"a": 0.15, "b": 0.7}, activation_sample_spread={"a": 0.02, "b": 7e-4})
        assert training.codes() == []

    @pytest.mark.parametrize(("before", "found"), [(0.45, ["ACT003"]), (0.9, [])])
    def test_outputs_that_shrink_to_small_targets_are_healthy(self, before: float, found: list[str]) -> None:
        training = stack(CollapsedRepresentation(), "a:Linear", "head:Linear")
        training.run(1, activation_std=1.0, activation_sample_spread=0.8)
        training.run(20, activation_std={"a": before, "head": 8.0}, activation_sample_spread={"a": 0.8, "head": 0.001})
        assert training.codes() == found

    def test_samples_that_come_in_apart_and_go_out_alike(self) -> None:
        training = stack(CollapsedRepresentation(), "a:Linear", "b:Linear", "c:Linear")
        spread = {"a": 0.9, "b": 0.1, "c": 1e-13}
        training.run(4, activation_std=1.0, activation_sample_spread=spread)
        assert training.codes() == []
        (finding,) = training.run(1, activation_std=1.0, activation_sample_spread=spread).findings()
        assert (finding.code, finding.layers, finding.first_step) == ("ACT003", ("b",), 0)

    def test_a_summary_that_is_added_to_every_sample_is_healthy(self) -> None:
        training = stack(CollapsedRepresentation(), "a:Linear", "summary:Linear", "head:Linear")
        nodes = training.graph.nodes
        training.graph = LayerGraph(nodes, ((0, 1), (1, 2), (0, 2)), GraphSource.AUTOGRAD)
        training.engine.set_layers(training.layers, training.graph)
        spread = {"a": 0.9, "summary": 1e-13, "head": 0.5}
        assert training.run(9, activation_std=1.0, activation_sample_spread=spread).codes() == []

    def test_learnt_queries_and_a_head_that_starts_at_zero_are_healthy(self) -> None:
        training = stack(CollapsedRepresentation(), "queries:Linear", "b:Linear", "head:Linear")
        alike = {"queries": 1e-13, "b": 0.5, "head": 1e-13}
        training.run(3, activation_std=1.0, activation_sample_spread=alike)
        training.run(9, activation_std=1.0, activation_sample_spread={**alike, "head": 0.3})
        assert training.codes() == []

    def test_a_layer_that_never_told_samples_apart_is_not_judged(self) -> None:
        training = stack(CollapsedRepresentation(), "a:Linear", "b:Linear")
        assert training.run(9, activation_std=1.0, activation_sample_spread=1e-9).codes() == []


class TestAttentionCollapse:
    def test_one_block(self) -> None:
        training = stack(AttentionCollapse(), "0:Linear", "1:Linear")
        fine = {"attention_logit_max": 5.0, "attention_entropy": 0.7}
        training.run(2, **fine)
        training.run(3, attention_logit_max={"0": 5.0, "1": 90.0}, attention_entropy=0.5)
        (finding,) = training.findings()
        assert (finding.code, finding.layers, finding.first_step) == ("ACT004", ("1",), 2)
        assert not training.run(1, **fine).findings()[0].ongoing

    def test_entropy_alone(self) -> None:
        training = stack(AttentionCollapse(), "0:Linear", "1:Linear")
        training.run(3, attention_logit_max=30.0, attention_entropy={"0": 0.001, "1": 0.5})
        assert training.findings()[0].layers == ("0",)

    def test_a_solution_that_looks_at_one_place(self) -> None:
        training = stack(AttentionCollapse(), "0:Linear", "1:Linear")
        for step in range(20):
            sharp = {"attention_logit_max": 25.0, "attention_entropy": 0.5 * 0.7**step}
            training.run(1, scalars={"loss": 2.0 * 0.7**step}, **sharp)
        assert training.codes() == []

    def test_logits_that_grow_when_all_is_learnt(self) -> None:
        training = stack(AttentionCollapse(), "0:Linear", "1:Linear")
        for step in range(20):
            training.run(1, scalars={"loss": 2.0 * 0.7**step}, attention_logit_max=5.0 * 1.3**step)
        assert training.codes() == []

    def test_logits_that_are_large_before_stay_a_finding(self) -> None:
        training = stack(AttentionCollapse(), "0:Linear", "1:Linear")
        for step in range(20):
            training.run(1, scalars={"loss": 2.0 * 0.7**step}, attention_logit_max={"0": 5.0, "1": 90.0})
        assert training.findings()[0].ongoing

    def test_all_blocks_are_no_block(self) -> None:
        training = stack(AttentionCollapse(), "0:Linear", "1:Linear").run(9, attention_logit_max=5.0)
        training.run(3, attention_logit_max=500.0)
        assert training.findings()[0].layers == ()

    def test_all_blocks_before_anything_was_learnt_are_written_like_that(self) -> None:
        training = stack(AttentionCollapse(), "0:Linear", "1:Linear").run(3, attention_logit_max=500.0)
        assert training.findings()[0].layers == ("0", "1")

    @pytest.mark.parametrize(("state", "word"), [(1.0, "queries"), (2.0, "padding"), (3.0, "root"), (4.0, "causal")])
    def test_a_broken_contract(self, state: float, word: str) -> None:
        training = stack(AttentionCollapse(), "0:Linear", "1:Linear")
        training.run(1, attention_state={"0": 0.0, "1": state})
        assert training.codes() == []
        training.run(1, attention_state={"0": 0.0, "1": state})
        (finding,) = training.findings()
        assert (finding.code, finding.layers, finding.first_step) == ("ACT004", ("1",), 0)
        assert word in finding.summary
        assert not training.run(1, attention_state=0.0).findings()[0].ongoing

    def test_trained_attention_may_have_large_logits(self) -> None:
        training = stack(AttentionCollapse(), "0:Linear", "1:Linear").run(5, attention_state=0.0)
        assert training.run(5, attention_state=3.0).codes() == []


class TestRouterCollapse:
    def test_everything_to_one(self) -> None:
        training = stack(RouterCollapse(), "router:Linear", "expert:Linear", "idle:Linear")
        moved = {"weight_drift": {"router.weight": 0.2, "expert.weight": 0.3, "idle.weight": 0.0}}
        training.run(2, router_load_max={"router": 0.6}, router_outputs={"router": 4.0}, **moved)
        training.run(13, router_load_max={"router": 1.0}, router_outputs={"router": 4.0}, **moved)
        (finding,) = training.findings()
        assert (finding.code, finding.layers, finding.first_step) == ("ACT005", ("router",), 2)
        training.run(1, router_load_max={"router": 0.4}, router_outputs={"router": 4.0})
        assert not training.findings()[0].ongoing

    def test_a_new_router_that_soon_spreads_its_rows_is_healthy(self) -> None:
        training = stack(RouterCollapse(), "router:Linear", "expert:Linear")
        training.run(8, router_load_max=1.0, router_outputs=4.0, weight_drift=0.3)
        assert training.run(9, router_load_max=0.6, router_outputs=4.0, weight_drift=0.4).codes() == []

    @pytest.mark.parametrize(("steps", "found"), [(40, []), (301, ["ACT005"])])
    def test_a_model_that_has_hardly_moved_is_given_time(self, steps: int, found: list[str]) -> None:
        training = stack(RouterCollapse(), "router:Linear", "expert:Linear")
        assert training.run(steps, router_load_max=1.0, router_outputs=4.0, weight_drift=0.02).codes() == found

    def test_imbalance_is_not_collapse(self) -> None:
        training = stack(RouterCollapse(), "router:Linear")
        assert training.run(19, router_load_max=0.9, router_outputs=8.0, weight_drift=0.3).codes() == []

    @pytest.mark.parametrize(("idle", "found"), [(3, ["ACT005"]), (1, []), (4, [])])
    def test_experts_that_get_no_gradient_any_more(self, idle: int, found: list[str]) -> None:
        training = stack(RouterCollapse(), "router:Linear", *(f"experts.{number}:Linear" for number in range(4)))
        even = {"router_load_max": {"router": 0.4}, "router_outputs": {"router": 4.0}}
        training.run(5, **even)
        silent = {f"experts.{number}": 0.0 for number in range(idle)}
        training.run(40, gradient_norm=silent, **even)
        assert training.codes() == found
        if found:
            finding = training.findings()[0]
            assert (finding.layers[0], finding.first_step, len(finding.layers)) == ("router", 5, 4)
