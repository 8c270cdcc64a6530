"""NUM001: a gradient is NaN or infinite."""

from __future__ import annotations

from tests.detect.building import Training

from undertow.schema import LayerGraph, Severity


def test_gradient_is_placed_where_the_backward_pass_broke() -> None:
    training = Training().run(7)
    training.run(2, gradient_nonfinite_count={"first": 3.0, "second": 5.0})
    (finding,) = training.findings()
    assert (finding.code, finding.severity) == ("NUM001", Severity.CRITICAL)
    # `second` is closer to the loss: the backward pass broke between it and `third`.
    assert finding.layers == ("second.weight", "second.bias", "first.bias", "first.weight")
    assert (finding.first_step, finding.detected_step, finding.last_step, finding.ongoing) == (7, 7, 8, True)
    assert finding.evidence[0].layer == "second.weight"
    assert finding.evidence[0].value == 5.0
    assert any("forward pass was sound" in evidence.how for evidence in finding.evidence)
    training.run(1)
    assert not training.findings()[0].ongoing
    assert training.log == [("opened", "NUM001", 7), ("closed", "NUM001", 9)]


def test_gradient_without_a_graph_falls_back_to_execution_order() -> None:
    training = Training()
    training.engine.set_layers(training.layers, LayerGraph())
    training.run(1, gradient_nonfinite_count={"second.weight": 1.0, "third.weight": 1.0})
    assert training.findings()[0].layers[0] == "third.weight"


def test_another_optimizers_frame_does_not_close_the_finding() -> None:
    training = Training()
    training.run(1, only=("first",), gradient_nonfinite_count={"first": 3.0})
    training.run(1, only=("head",))
    assert training.findings()[0].ongoing
    training.run(1, only=("first",))
    assert not training.findings()[0].ongoing
