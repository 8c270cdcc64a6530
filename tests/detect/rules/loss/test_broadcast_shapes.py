"""LSS002: prediction and target have different shapes."""

from __future__ import annotations

from tests.detect.courses import training

from undertow.detect.rules.loss.broadcast_shapes import BroadcastShapes


def test_it_opens_and_ends() -> None:
    run = training(BroadcastShapes).run(2, scalars={"loss_broadcast": 1.0, "loss_rows": 64.0})
    assert run.alarms() == ["LSS002"]
    run.run(1, scalars={"loss_broadcast": 0.0})
    assert not run.findings()[0].ongoing


def test_one_odd_batch_is_not_enough() -> None:
    run = training(BroadcastShapes)
    for _ in range(5):
        run.run(1, scalars={"loss_broadcast": 1.0}).run(1, scalars={"loss_broadcast": 0.0})
    assert run.codes() == []


def test_of_two_heads_the_one_that_the_loss_was_given_is_named() -> None:
    scalars = {"loss_broadcast": 1.0}
    run = training(BroadcastShapes)
    source = float(run.layers["second.bias"].id)
    (finding,) = run.run(2, scalars={**scalars, "loss_layer": source}).findings()
    assert finding.layers[-1] == "second"
    (finding,) = training(BroadcastShapes).run(2, scalars=scalars).findings()
    assert finding.layers == ("head",)
