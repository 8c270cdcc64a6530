"""WGT002 on frames made by hand: members that are copies."""

from __future__ import annotations

import pytest
from tests.detect.stacks import stack

from undertow.detect.rules.weights.copied_parts import CopiedParts

USUAL = 8**0.5  # the norm of an 8 × 8 matrix of scale 1


class TestCopiedParts:
    @pytest.mark.parametrize(
        ("differs", "found"),
        [({}, True), ({"weight_norm": {"members.1.b.weight": 1.0001}}, False),
         ({"gradient_norm": {"members.1.a.weight": 0.11}}, False), ({"weight_drift": 0.0}, False)],
        ids=["copies", "parted", "replicas with batches of their own", "not trained yet"],
    )  # fmt: skip
    def test_members_that_are_copies(self, differs: dict[str, object], found: bool) -> None:
        names = [f"members.{i}.{layer}:Linear" for i in range(2) for layer in "ab"]
        training = stack(CopiedParts, *names)
        training.run(6, **{"weight_row_spread": 0.3, "weight_drift": 0.05, **differs})
        copies = ("members.1.a.weight", "members.1.b.weight")
        assert [finding.layers for finding in training.findings()] == ([copies] if found else [])
