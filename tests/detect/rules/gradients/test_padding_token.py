"""GRD004: a real token has the padding index of an embedding."""

from __future__ import annotations

from tests.detect.building import watched_by

from undertow.detect.rules.gradients.padding_token import PaddingToken
from undertow.schema import Severity


def test_a_token_of_the_text_that_is_padding() -> None:
    run = watched_by(PaddingToken).run(1, padding_inside={"first": 0.1})
    assert run.codes() == []
    (finding,) = run.run(1, padding_inside={"first": 0.1}).findings()
    assert (finding.code, finding.severity, finding.layers) == ("GRD004", Severity.MODERATE, ("first",))
    assert watched_by(PaddingToken).run(9, padding_inside={"first": 0.001}).codes() == []
