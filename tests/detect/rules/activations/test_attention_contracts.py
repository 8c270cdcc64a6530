"""ACT004: softmax-over-queries, attention-to-padding, unscaled-attention, missing-causal-mask."""

from __future__ import annotations

import pytest
from tests.detect.stacks import stack

from undertow.detect.rules.activations.attention_to_padding import AttentionToPadding
from undertow.detect.rules.activations.missing_causal_mask import MissingCausalMask
from undertow.detect.rules.activations.softmax_over_queries import SoftmaxOverQueries
from undertow.detect.rules.activations.unscaled_attention import UnscaledAttention

CONTRACTS = (SoftmaxOverQueries, AttentionToPadding, UnscaledAttention, MissingCausalMask)


@pytest.mark.parametrize(("state", "word"), [(1.0, "queries"), (2.0, "padding"), (3.0, "root"), (4.0, "causal")])
def test_a_broken_contract(state: float, word: str) -> None:
    training = stack(CONTRACTS, "0:Linear", "1:Linear")
    training.run(1, attention_state={"0": 0.0, "1": state})
    assert training.codes() == []
    training.run(1, attention_state={"0": 0.0, "1": state})
    (finding,) = training.findings()
    assert (finding.code, finding.layers, finding.first_step) == ("ACT004", ("1",), 0)
    assert word in finding.summary
    assert not training.run(1, attention_state=0.0).findings()[0].ongoing


def test_trained_attention_may_have_large_logits() -> None:
    training = stack(CONTRACTS, "0:Linear", "1:Linear").run(5, attention_state=0.0)
    assert training.run(5, attention_state=3.0).codes() == []
