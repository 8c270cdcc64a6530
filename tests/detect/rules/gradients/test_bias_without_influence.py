"""GRD004: a bias has no influence."""

from __future__ import annotations

from tests.detect.building import Training

from undertow.schema import Severity


def test_a_bias_alone_is_a_remark() -> None:
    (finding,) = Training().run(60, gradient_zero_fraction={"third.bias": 1.0}).findings()  # the key bias of attention
    assert (finding.code, finding.variant) == ("GRD004", "bias-without-influence")
    assert (finding.severity, finding.layers) == (Severity.INFO, ("third.bias",))
