"""ACT003 collapsed-representation."""

from __future__ import annotations

import pytest
from tests.detect.stacks import stack

from undertow.detect.rules.activations.collapsed_representation import CollapsedRepresentation


@pytest.mark.parametrize(("entering", "found"), [(1.0, ["ACT003"]), (0.2, [])])
def test_samples_that_come_in_alike_go_out_alike(entering: float, found: list[str]) -> None:
    training = stack(CollapsedRepresentation, "a:Linear", "b:Linear", "c:Linear")
    training.run(3, scalars={"input_std": 1.0}, activation_std=1.0, activation_sample_spread=0.8)
    training.run(30, scalars={"input_std": entering}, activation_std=0.18, activation_sample_spread=0.8)
    assert training.codes() == found


@pytest.mark.parametrize(("later", "found"), [("lr_1", []), ("lr_0", ["ACT003"])])
def test_steps_of_another_optimizer_are_compared_with_their_own(later: str, found: list[str]) -> None:
    training = stack(CollapsedRepresentation, "a:Linear", "b:Linear", "c:Linear")
    training.run(3, scalars={"lr_0": 1e-3}, activation_std=1.0, activation_sample_spread=0.8)
    training.run(30, scalars={later: 1e-3}, activation_std=0.1, activation_sample_spread=0.8)
    assert training.codes() == found


def test_a_code_that_the_decoder_ignores() -> None:
    training = stack(CollapsedRepresentation, "encoder:Linear", "code:Linear", "decoder:Linear")
    training.run(3, activation_std=1.0, activation_sample_spread=0.8)
    collapsed = {"encoder": 0.4, "code": 0.18, "decoder": 0.3}
    training.run(9, activation_std=collapsed, activation_sample_spread=0.8)
    assert training.codes() == []
    training.run(6, activation_std=collapsed, activation_sample_spread=0.8)
    (finding,) = training.findings()
    assert (finding.code, finding.layers, finding.first_step) == ("ACT003", ("code",), 3)


def test_a_code_with_a_prior_is_told_about_the_prior() -> None:
    training = stack(CollapsedRepresentation, "encoder:Linear", "code:Linear", "decoder:Linear")
    training.run(3, activation_std=1.0, activation_sample_spread=0.8)
    collapsed = {"encoder": 0.4, "code": 0.18, "decoder": 0.3}
    training.run(15, activation_std=collapsed, activation_sample_spread=0.8, latent_nats={"code": 0.05})
    (finding,) = training.findings()
    assert CollapsedRepresentation.remedies_for(finding)[0].id == "anneal-the-prior"


@pytest.mark.parametrize(("steps", "found"), [(100, []), (200, ["ACT003"])])
def test_a_classifier_may_guess_for_long_before_it_learns(steps: int, found: list[str]) -> None:
    training = stack(CollapsedRepresentation, "a:Linear", "b:Linear", "head:Linear")
    one, two = {"loss": 1.4, "loss_kind": 1.0}, {"loss": 1.8, "loss_kind": 0.0}  # now and then with a second term
    training.run(1, scalars=one, activation_std=1.0, activation_sample_spread=0.2)
    for step in range(steps):
        training.run(1, scalars=two if step % 4 else one, activation_std=0.3, activation_sample_spread=1e-3)
    assert training.codes() == found


@pytest.mark.parametrize(("kind", "found"), [(3.0, []), (0.0, ["ACT003"])])
def test_outputs_alone_shrink_to_their_targets_where_there_are_any(kind: float, found: list[str]) -> None:
    training = stack(CollapsedRepresentation, "a:Linear", "head:Linear")
    training.run(1, activation_std=1.0, activation_sample_spread=0.8)
    shrunk = {"a": 0.9, "head": 0.05}
    training.run(30, scalars={"loss_kind": kind}, activation_std=shrunk, activation_sample_spread=0.8)
    assert training.codes() == found


@pytest.mark.parametrize(("steps", "found"), [(100, []), (200, ["ACT003"])])
def test_the_mean_of_all_targets_comes_before_what_tells_them_apart(steps: int, found: list[str]) -> None:
    training = stack(CollapsedRepresentation, "a:Linear", "head:Linear")
    training.run(1, activation_std=1.0, activation_sample_spread=0.8)
    few = {"a": 0.4, "head": 1e-3}
    training.run(steps, scalars={"loss_kind": 3.0}, activation_std=few, activation_sample_spread=few)
    assert training.codes() == found


def test_a_small_layer_of_a_model_that_learns_is_healthy() -> None:
    training = stack(CollapsedRepresentation, "encoder:Linear", "code:Linear", "decoder:Linear")
    training.run(1, activation_std=1.0, activation_sample_spread=0.8)
    training.run(30, activation_std={"encoder": 0.4, "code": 0.08, "decoder": 3.0}, activation_sample_spread=0.8)
    assert training.codes() == []


def test_a_single_sample_says_nothing() -> None:
    training = stack(CollapsedRepresentation, "a:Linear", "b:Linear")
    training.run(1, activation_std=1.0, activation_sample_spread=0.8)
    assert training.run(30, activation_std=1.0, activation_sample_spread=0.0).codes() == []


def test_the_same_output_with_a_deviation_within() -> None:
    training = stack(CollapsedRepresentation, "encoder:Linear", "decoder:Linear")
    training.run(1, activation_std=1.0, activation_sample_spread=0.8)
    training.run(20, activation_std=1.0, activation_sample_spread={"encoder": 1e-5, "decoder": 0.8})
    assert training.findings()[0].layers == ("encoder",)


def test_a_language_model_that_learns_the_frequent_words_first_is_healthy() -> None:
    training = stack(CollapsedRepresentation, "a:Linear", "b:Linear")
    training.run(1, activation_std={"a": 0.06, "b": 0.08}, activation_sample_spread={"a": 0.12, "b": 0.016})
    training.run(30, activation_std={"a": 0.15, "b": 0.7}, activation_sample_spread={"a": 0.02, "b": 7e-4})
    assert training.codes() == []


@pytest.mark.parametrize(("before", "found"), [(0.45, ["ACT003"]), (0.9, [])])
def test_outputs_that_shrink_to_small_targets_are_healthy(before: float, found: list[str]) -> None:
    training = stack(CollapsedRepresentation, "a:Linear", "head:Linear")
    training.run(1, activation_std=1.0, activation_sample_spread=0.8)
    training.run(20, activation_std={"a": before, "head": 8.0}, activation_sample_spread={"a": 0.8, "head": 0.001})
    assert training.codes() == found


def test_a_layer_that_never_told_samples_apart_is_not_judged() -> None:
    training = stack(CollapsedRepresentation, "a:Linear", "b:Linear")
    assert training.run(9, activation_std=1.0, activation_sample_spread=1e-9).codes() == []
