"""GRD001, GRD002, GRD005, GRD006, GRD008, GRD009, GRD010."""

from __future__ import annotations

import math

import pytest
from tests.detect.building import Training

from undertow.detect.engine import Engine
from undertow.detect.rule import Rule
from undertow.detect.rules.conflicting_gradient import ConflictingGradient
from undertow.detect.rules.exploding_gradient import ExplodingGradient
from undertow.detect.rules.gradient_spike import GradientSpike
from undertow.detect.rules.noisy_gradient import NoisyGradient
from undertow.detect.rules.oscillating_gradient import OscillatingGradient
from undertow.detect.rules.over_clipping import OverClipping
from undertow.detect.rules.vanishing_gradient import VanishingGradient
from undertow.schema.graph import GraphNode, GraphSource, LayerGraph
from undertow.schema.layers import LayerKind, LayerTable
from undertow.schema.severity import Severity

NAMES = ("a", "b", "c", "d", "e", "f")


def watched_by(rule: Rule, *names: str) -> Training:
    training = Training(*(names or NAMES))
    training.engine = Engine([rule])
    training.engine.set_layers(training.layers, training.graph)
    return training


def by_depth(decades: float, top: float = 1e-2) -> dict[str, float]:
    """Gradient sizes that rise evenly by so many decades from the first layer to the last."""
    last = len(NAMES) - 1
    return {name: top * 10 ** (decades * (place - last) / last) for place, name in enumerate(NAMES)}


# -- GRD001 -------------------------------------------------------------------------------------------------------


def test_fading_over_depth_is_vanishing_at_the_fifth_step_when_the_first_layers_rest() -> None:
    training = watched_by(VanishingGradient())
    training.run(10, gradient_rms=by_depth(5), update_ratio=by_depth(5), update_norm=by_depth(5))
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.ongoing) == ("GRD001", Severity.SEVERE, True)
    assert (finding.first_step, finding.detected_step, finding.last_step) == (0, 4, 9)
    assert finding.layers == ("a.weight", "b.weight", "c.weight")


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e5])
def test_the_scale_of_the_loss_does_not_matter(scale: float) -> None:
    training = watched_by(VanishingGradient())
    rms = by_depth(5, top=1e-2 * scale)
    training.run(10, gradient_rms=rms, update_ratio=by_depth(5), update_norm=by_depth(5), scalars={"loss": scale})
    assert training.codes() == ["GRD001"]


def test_an_optimizer_that_makes_up_for_small_gradients_gets_more_time() -> None:
    training = watched_by(VanishingGradient())
    training.run(24, gradient_rms=by_depth(5))
    assert training.findings() == []
    training.run(2, gradient_rms=by_depth(5))
    assert training.findings()[0].detected_step == 24


def test_a_deep_network_that_learns_is_healthy() -> None:
    training = watched_by(VanishingGradient())
    for step in range(60):
        training.run(1, gradient_rms=by_depth(5), scalars={"loss": 2.3 * 0.97**step})
    assert training.findings() == []


def test_vanishing_ends_when_gradients_come_back() -> None:
    training = watched_by(VanishingGradient())
    training.run(10, gradient_rms=by_depth(5), update_ratio=1e-6)
    training.run(5, gradient_rms=by_depth(1))
    assert training.log == [("opened", "GRD001", 4), ("closed", "GRD001", 10)]


def test_small_gradients_everywhere_and_a_gentle_slope_are_healthy() -> None:
    training = watched_by(VanishingGradient())
    training.run(50, gradient_rms=1e-12, update_ratio=1e-6)
    training.run(50, gradient_rms=by_depth(2), update_ratio=1e-6)
    assert training.findings() == []


def test_one_narrow_place_is_named_before_the_input() -> None:
    training = watched_by(VanishingGradient())
    rms = {"a": 1.0e-7, "b": 1.2e-7, "c": 1.1e-7, "d": 1e-2, "e": 1.1e-2, "f": 1e-2}
    training.run(6, gradient_rms=rms, update_ratio=1e-6)
    assert training.findings()[0].layers == ("c.weight", "b.weight", "a.weight")


def test_layers_behind_closed_gates_between_layers_that_learn() -> None:
    rms = {"a": 1e-3, "b": 1e-20, "c": 1e-20, "d": 1e-20, "e": 1e-2, "f": 1e-2}
    moves = {"a": 1e-3, "b": 1e-12, "c": 1e-12, "d": 1e-12, "e": 1e-3, "f": 1e-3}
    training = watched_by(VanishingGradient()).run(6, gradient_rms=rms, update_ratio=moves, update_norm=moves)
    (finding,) = training.findings()
    assert (finding.code, finding.layers) == ("GRD001", ("b.weight", "c.weight", "d.weight"))
    # An optimizer that makes up for it, gates that open, and branches that rest at exactly zero are no fault.
    assert watched_by(VanishingGradient()).run(9, gradient_rms=rms).codes() == []
    opening = watched_by(VanishingGradient()).run(4, gradient_rms=rms, update_ratio=moves, update_norm=moves)
    assert opening.run(9, gradient_rms=1e-3).codes() == []
    zero = {name: 0.0 if size < 1e-9 else size for name, size in rms.items()}
    assert watched_by(VanishingGradient()).run(9, gradient_rms=zero, update_ratio=moves).codes() == []


# -- GRD002 -------------------------------------------------------------------------------------------------------


def test_growth_towards_the_input_is_exploding() -> None:
    training = watched_by(ExplodingGradient())
    training.run(5, gradient_rms=by_depth(-5))
    (finding,) = training.findings()
    assert (finding.code, finding.detected_step) == ("GRD002", 2)
    assert finding.layers[0] == "a.weight"


@pytest.mark.parametrize(("sizes", "found"), [((3e-2, 1e-2, 2e-5, 5e-5), []), ((1e-1, 1e-2, 1e-3, 1e-5), ["GRD002"])])
def test_a_trunk_and_a_small_second_loss_make_no_line(sizes: tuple[float, ...], found: list[str]) -> None:
    names = ("trunk", "middle", "redraw", "picture")
    training = watched_by(ExplodingGradient(), *names)
    training.run(5, gradient_rms={f"{name}.weight": size for name, size in zip(names, sizes, strict=True)})
    assert training.codes() == found


def recurrent() -> Training:
    training = Training("rnn", "head")
    layers = [
        layer.replace(kind=LayerKind.RECURRENT) if layer.path == "rnn.weight" else layer for layer in training.layers
    ]
    training.layers = LayerTable.of(layers)
    training.engine = Engine([ExplodingGradient()])
    training.engine.set_layers(training.layers, training.graph)
    return training


def test_a_recurrent_weight_that_explodes_is_named_at_once() -> None:
    training = recurrent()
    training.run(1, gradient_norm={"rnn.weight": 400.0}, update_ratio=1.0, update_norm=1.0)
    (finding,) = training.findings()
    assert (finding.layers, finding.detected_step) == (("rnn.weight",), 0)
    assert "through time" in finding.summary


def test_a_module_that_runs_many_times_counts_as_recurrent() -> None:
    training = watched_by(ExplodingGradient(), "cell", "head")
    training.run(3, gradient_norm={"cell.weight": 150.0}, activation_calls={"cell": 20.0})
    assert training.findings()[0].layers == ("cell.weight",)
    other = watched_by(ExplodingGradient(), "cell", "head")
    other.run(3, gradient_norm={"cell.weight": 150.0})
    assert other.findings() == []


@pytest.mark.parametrize("scale", [1e-5, 1e5])
def test_sensitivity_is_relative_to_the_loss(scale: float) -> None:
    training = recurrent()
    training.run(10, gradient_norm=scale, scalars={"loss": scale})
    assert training.findings() == []


def test_growth_over_time_needs_a_loss_above_its_start() -> None:
    for loss, codes in ((3.0, ["GRD002"]), (0.5, [])):
        training = watched_by(ExplodingGradient())
        training.run(20, scalars={"gradient_norm_total": 0.1})
        training.run(20, scalars={"gradient_norm_total": 1e4, "loss": loss})
        assert training.codes() == codes


# -- GRD005 -------------------------------------------------------------------------------------------------------


def test_gradients_that_point_to_and_fro_without_progress() -> None:
    training = watched_by(OscillatingGradient())
    training.run(20, gradient_cosine=-0.8)
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("GRD005", Severity.MODERATE, ())
    assert finding.detected_step == 16
    training.run(12, gradient_cosine=0.4)
    assert not training.findings()[0].ongoing


def test_oscillation_at_the_edge_of_stability_is_healthy() -> None:
    training = watched_by(OscillatingGradient())
    for step in range(60):
        training.run(1, gradient_cosine=-0.8, scalars={"loss": (2.0 + 0.2 * (-1) ** step) * 0.97**step})
    assert training.findings() == []


def test_gradients_measured_at_every_second_step_tell_nothing() -> None:
    training = watched_by(OscillatingGradient())
    for _ in range(40):
        training.run(1, gradient_cosine=-0.8)
        training.step += 1
    assert training.findings() == []


# -- GRD006 -------------------------------------------------------------------------------------------------------


def calm(training: Training, steps: int) -> Training:
    for step in range(steps):
        norm = 0.1 * 1.1 ** (step % 5)
        training.run(1, gradient_norm=norm, update_ratio=1e-3, scalars={"gradient_norm_total": norm})
    return training


def test_a_spike_that_throws_the_weights_about_is_an_alarm_and_ends() -> None:
    training = calm(watched_by(GradientSpike()), 30)
    training.run(1, gradient_norm=5.0, update_ratio=0.05, update_norm=0.05, scalars={"gradient_norm_total": 5.0})
    calm(training, 5)
    (finding,) = training.findings()
    assert (finding.code, finding.severity) == ("GRD006", Severity.SEVERE)
    assert (finding.first_step, finding.last_step, finding.ongoing) == (30, 30, False)
    assert finding.layers == ()


def test_a_spike_that_clipping_took_away_is_a_remark() -> None:
    training = calm(watched_by(GradientSpike()), 30)
    training.run(1, gradient_norm=5.0, update_ratio=1e-3, scalars={"gradient_norm_total": 5.0})
    assert [finding.severity for finding in training.findings()] == [Severity.MILD]


def test_a_spike_of_one_layer_of_many_does_not_win_the_vote() -> None:
    training = calm(watched_by(GradientSpike()), 30)
    training.run(1, gradient_norm={"a": 5.0}, update_ratio=0.05, scalars={"gradient_norm_total": 5.0})
    assert training.findings() == []


def test_gradients_of_long_ago_that_come_back_are_healthy() -> None:
    training = watched_by(GradientSpike())
    training.run(20, gradient_norm=5.0, scalars={"gradient_norm_total": 5.0})
    calm(training, 60)
    training.run(1, gradient_norm=5.0, update_ratio=0.05, scalars={"gradient_norm_total": 5.0})
    assert training.findings() == []


# -- GRD008 -------------------------------------------------------------------------------------------------------


def test_noise_that_dominates_from_the_start() -> None:
    training = watched_by(NoisyGradient())
    training.run(60, gradient_noise_scale=100.0, scalars={"backward_count": 4.0})
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("GRD008", Severity.MILD, ())


@pytest.mark.parametrize(("scale", "batches"), [(8.0, 4.0), (100.0, 2.0), (100.0, 1.0)])
def test_little_noise_or_other_losses_instead_of_batches(scale: float, batches: float) -> None:
    training = watched_by(NoisyGradient())
    training.run(80, gradient_noise_scale=scale, scalars={"backward_count": batches})
    assert training.findings() == []


def test_noise_after_learning_is_healthy() -> None:
    training = watched_by(NoisyGradient())
    for step in range(100):
        training.run(1, gradient_noise_scale=math.inf, scalars={"backward_count": 4.0, "loss": 2.0 * 0.95**step})
    assert training.findings() == []


# -- GRD009 -------------------------------------------------------------------------------------------------------


def two_heads() -> Training:
    training = Training("trunk", "left", "right")
    nodes = (*(GraphNode(i, name) for i, name in enumerate(("trunk", "left", "right"))), GraphNode(3, "", "Add", True))
    training.graph = LayerGraph(nodes, ((0, 1), (0, 2), (1, 3), (2, 3)), GraphSource.AUTOGRAD)
    training.engine = Engine([ConflictingGradient()])
    training.engine.set_layers(training.layers, training.graph)
    return training


def test_a_head_that_is_drowned_from_the_start_is_named() -> None:
    training = two_heads().run(6, gradient_norm={"left": 1e-4, "right": 10.0})
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("GRD009", Severity.MODERATE, ("left.weight",))
    assert finding.detected_step == 4


def test_a_head_that_has_learnt_its_task_is_not_drowned() -> None:
    training = two_heads().run(20)
    training.run(50, gradient_norm={"left": 1e-6, "right": 10.0})
    assert training.findings() == []


def test_a_head_that_is_done_is_not_drowned_where_gradients_are_measured_rarely() -> None:
    training = two_heads().run(3)
    for _ in range(20):
        training.run(1, gradient_norm={"left": 1e-6, "right": 10.0}).run(5, streams=("update",))
    assert training.findings() == []


def test_a_chain_has_one_head_only() -> None:
    training = watched_by(ConflictingGradient(), "trunk", "left", "right")
    training.run(20, gradient_norm={"left": 1e-6, "right": 10.0})
    assert training.findings() == []


def test_two_losses_that_oppose_each_other_are_a_remark() -> None:
    training = watched_by(ConflictingGradient())
    training.run(25, gradient_noise_scale=math.inf, scalars={"backward_count": 2.0})
    assert [(finding.code, finding.severity) for finding in training.findings()] == [("GRD009", Severity.MILD)]


# -- GRD010 -------------------------------------------------------------------------------------------------------

SLOW = {"update_ratio": 1e-5, "update_norm": 1e-5, "stepped_gradient_norm": 1e-4}


def clipped(training: Training, steps: int, left: float = 1e-3, **more: float) -> Training:
    scalars = {"clip_coefficient": left, "lr": 0.1, "gradient_norm_total": 0.1, "loss": more.pop("loss", 1.0)}
    return training.run(steps, scalars=scalars, **{**SLOW, **more})


def test_clipping_that_leaves_nothing() -> None:
    training = clipped(watched_by(OverClipping()), 10)
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("GRD010", Severity.SEVERE, ())
    assert finding.detected_step == 7
    clipped(training, 3, left=0.8)
    assert not training.findings()[0].ongoing


def test_clipping_that_begins_late_is_seen_too() -> None:
    training = watched_by(OverClipping())
    for step in range(50):
        clipped(training, 1, left=1.0, loss=2.0 * 0.95**step)
    clipped(training, 10, loss=0.15)
    assert training.findings()[0].first_step == 50


def test_clipping_that_comes_and_goes_while_the_loss_falls_is_healthy() -> None:
    training = watched_by(OverClipping())
    for step in range(20):
        clipped(training, 4, loss=2.0 * 0.8**step)
        clipped(training, 2, left=0.5, loss=2.0 * 0.8**step)
    assert clipped(training, 30, loss=2.0 * 0.8**20).findings() == []


def test_clipping_to_a_tenth_under_adam_or_with_steps_that_are_long_enough_is_healthy() -> None:
    training = clipped(watched_by(OverClipping()), 30, left=0.1)
    clipped(training, 30, stepped_gradient_norm=1e-8)  # Adam: the length of a step has nothing to do with the gradient
    clipped(training, 30, update_ratio=1e-3)
    assert training.findings() == []


def test_a_flow_that_is_cut_after_a_steady_start_is_seen_at_once() -> None:
    cut = {"first": 1.0, "second": 1.0}
    training = Training().run(20).run(2, gradient_zero_fraction=cut)
    assert training.alarms() == []
    training.run(1, gradient_zero_fraction=cut, streams=("gradient",))
    (finding,) = training.findings()
    assert (finding.code, finding.layers[0], finding.first_step) == ("GRD004", "second.weight", 20)


def test_one_layer_that_turns_zero_after_a_steady_start_takes_a_little_longer() -> None:
    training = Training().run(20).run(4, gradient_zero_fraction={"second": 1.0})
    assert training.alarms() == []
    assert training.run(1, gradient_zero_fraction={"second": 1.0}).alarms() == ["GRD004"]


def test_a_branch_that_is_used_now_and_then_is_no_steady_flow() -> None:
    training = Training()
    for _ in range(6):
        training.run(8).run(6, gradient_zero_fraction={"second": 1.0})
    assert training.alarms() == []


def test_adapters_of_zeros_alone_are_seen_before_long() -> None:
    training = Training().run(4, gradient_zero_fraction=1.0, weight_norm={"second": 0.0})
    assert "GRD004" not in training.alarms()
    training.run(1, gradient_zero_fraction=1.0, weight_norm={"second": 0.0})
    assert "GRD004" in training.alarms()


def test_a_gradient_that_is_erased_before_the_step() -> None:
    erased = {"gradient_max_abs": 0.01, "stepped_gradient_max_abs": {"second.weight": 0.0}}
    training = Training().run(3, **erased)
    assert training.codes() == []
    (finding,) = training.run(1, **erased).findings()
    assert (finding.code, finding.layers) == ("GRD004", ("second.weight",))
    assert "between the backward pass and the optimizer's step" in finding.summary
    assert not training.run(1).findings()[0].ongoing
