"""ACT004: what holds for every attention."""

from __future__ import annotations

import pytest
from tests.detect.stacks import stack

from undertow.detect.rules.activations.attention_contract import AttentionContract


@pytest.mark.parametrize(("state", "word"), [(1.0, "queries"), (2.0, "padding"), (3.0, "root"), (4.0, "causal")])
def test_a_broken_contract(state: float, word: str) -> None:
    training = stack(AttentionContract, "0:Linear", "1:Linear")
    training.run(1, attention_state={"0": 0.0, "1": state})
    assert training.codes() == []
    training.run(1, attention_state={"0": 0.0, "1": state})
    (finding,) = training.findings()
    assert (finding.code, finding.layers, finding.first_step) == ("ACT004", ("1",), 0)
    assert word in finding.summary
    assert len(AttentionContract.remedies_for(finding)) == (2 if state == 3.0 else 1)
    assert not training.run(1, attention_state=0.0).findings()[0].ongoing


def test_trained_attention_may_have_large_logits() -> None:
    training = stack(AttentionContract, "0:Linear", "1:Linear").run(5, attention_state=0.0)
    assert training.run(5, attention_state=3.0).codes() == []
