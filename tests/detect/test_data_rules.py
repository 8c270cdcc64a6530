"""A token of the text that is taken for padding, on frames made by hand."""

from __future__ import annotations

from tests.detect.stacks import training

from undertow.detect.rules.zero_gradient import ZeroGradient
from undertow.schema.severity import Severity


def test_a_token_of_the_text_that_is_padding() -> None:
    run = training(ZeroGradient()).run(1, padding_inside={"first": 0.1})
    assert run.codes() == []
    (finding,) = run.run(1, padding_inside={"first": 0.1}).findings()
    assert (finding.code, finding.severity, finding.layers) == ("GRD004", Severity.MODERATE, ("first",))
    assert training(ZeroGradient()).run(9, padding_inside={"first": 0.001}).codes() == []
