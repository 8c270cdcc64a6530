"""MOD001 on frames made by hand: activation checkpointing."""

from __future__ import annotations

from tests.detect.stacks import stack

from undertow.detect.rules.modes.redrawn_masks import RedrawnMasks


def test_masks_that_checkpointing_draws_again() -> None:
    parts = ("block:Block", "block.drop:Dropout", "head:Linear")
    training = stack(RedrawnMasks, *parts).run(1, recomputed_apart={"block": 1.0, "block.drop": 1.0})
    assert training.codes() == []
    (finding,) = training.run(1, recomputed_apart={"block": 1.0, "block.drop": 1.0}).findings()
    assert (finding.layers, finding.severity.is_alarm) == (("block.drop",), True)
    kept = stack(RedrawnMasks, *parts).run(9, recomputed_apart={"block": 0.0, "block.drop": 0.0})
    assert kept.codes() == []
