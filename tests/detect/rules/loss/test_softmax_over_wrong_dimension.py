"""LSS001: a softmax over another dimension than the classes."""

from __future__ import annotations

from tests.detect.courses import CROSS_ENTROPY, training

from undertow.detect.rules.loss.logits_for_probabilities import LogitsForProbabilities
from undertow.detect.rules.loss.probabilities_for_logits import ProbabilitiesForLogits
from undertow.detect.rules.loss.softmax_over_wrong_dimension import SoftmaxOverWrongDimension

INPUTS = (ProbabilitiesForLogits, LogitsForProbabilities, SoftmaxOverWrongDimension)


def test_a_softmax_over_another_dimension() -> None:
    (finding,) = training(*INPUTS).run(2, scalars={**CROSS_ENTROPY, "loss_input_is_logit": 1.0}).findings()
    assert finding.variant == "softmax-over-wrong-dimension"
    assert "dimension" in finding.summary
