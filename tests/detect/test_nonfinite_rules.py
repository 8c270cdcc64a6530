"""NUM001, NUM002, NUM003."""

from __future__ import annotations

import math

from tests.detect.building import Training

from undertow.schema.severity import Severity


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
    from undertow.schema.graph import LayerGraph

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


def test_a_loss_scaler_may_skip_steps() -> None:
    skipped = {"step_skipped": 1.0, "loss_scale": 1024.0}
    training = Training().run(10, scalars=skipped, gradient_nonfinite_count=2.0).run(5)
    training.run(3, scalars=skipped, gradient_nonfinite_count=2.0).run(5)
    assert training.alarms() == []
    assert [f.severity for f in training.findings()] == [Severity.INFO]
    training.run(11, scalars=skipped, gradient_nonfinite_count=2.0)
    assert training.alarms() == ["NUM001"]
    assert training.findings()[0].severity is Severity.MODERATE
    training.run(25, scalars=skipped, gradient_nonfinite_count=2.0)
    assert training.findings()[0].severity is Severity.SEVERE


def test_skips_are_counted_without_a_gradient_block() -> None:
    training = Training().run(11, scalars={"step_skipped": 1.0}, streams=())
    assert training.alarms() == ["NUM001"]


def test_loss() -> None:
    training = Training().run(3).run(2, scalars={"loss": math.inf}).run(1)
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("NUM002", Severity.CRITICAL, ())
    assert (finding.first_step, finding.last_step, finding.ongoing) == (3, 4, False)


def test_loss_names_the_first_module_that_was_non_finite() -> None:
    training = Training().run(1, scalars={"loss": math.nan}, activation_nonfinite_count={"second": 4.0, "third": 9.0})
    assert training.findings()[0].layers == ("second",)


def test_loss_of_a_skipped_step_is_a_remark() -> None:
    training = Training().run(1, scalars={"loss": math.inf, "step_skipped": 1.0})
    assert training.alarms() == []


def test_weight() -> None:
    training = (
        Training().run(2).run(1, weight_nonfinite_count={"third.weight": 64.0}).run(3, weight_nonfinite_count=8.0)
    )
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("NUM003", Severity.CRITICAL, ("third.weight",))
    assert (finding.first_step, finding.last_step, finding.ongoing) == (2, 5, True)


def test_a_frozen_mask_may_hold_infinities() -> None:
    training = Training().run(
        9, gradient_state={"first.weight": 2.0}, weight_nonfinite_count={"first.weight": 10.0},
        gradient_zero_fraction={"first.weight": math.nan},
    )  # fmt: skip
    assert training.alarms() == []
    assert sorted(training.codes()) == ["NUM003", "UPD004"]
