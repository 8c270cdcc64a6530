"""ACT003 posterior-collapse."""

from __future__ import annotations

from tests.detect.stacks import stack

from undertow.detect.rules.activations.posterior_collapse import PosteriorCollapse


def test_a_code_that_tells_nothing_for_long():
    training = stack(PosteriorCollapse, "encoder:Linear", "mean:Linear", "decoder:Linear")
    training.run(40, latent_nats={"mean": 0.001})
    assert training.codes() == []
    (finding,) = training.run(1, latent_nats={"mean": 0.001}).findings()
    assert (finding.code, finding.layers, finding.first_step) == ("ACT003", ("mean",), 0)


def test_a_code_that_tells_little_is_one():
    training = stack(PosteriorCollapse, "encoder:Linear", "mean:Linear", "decoder:Linear")
    training.run(30, latent_nats={"mean": 0.001})
    training.run(1, latent_nats={"mean": 0.2})
    assert training.run(30, latent_nats={"mean": 0.001}).codes() == []


def test_a_code_that_falls_silent_after_it_had_told_something():
    training = stack(PosteriorCollapse, "encoder:Linear", "mean:Linear", "decoder:Linear")
    training.run(9, scalars={"loss": 1.0}, latent_nats={"mean": 2.0})
    training.run(12, scalars={"loss": 0.5}, latent_nats={"mean": 3.0})
    training.run(12, scalars={"loss": 0.9}, latent_nats={"mean": 0.001})
    assert training.codes() == []
    (finding,) = training.run(1, scalars={"loss": 0.9}, latent_nats={"mean": 0.001}).findings()
    assert (finding.code, finding.layers, finding.first_step) == ("ACT003", ("mean",), 21)
