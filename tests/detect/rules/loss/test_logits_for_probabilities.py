"""LSS001: raw scores where (log-)probabilities belong."""

from __future__ import annotations

from tests.detect.courses import training

from undertow.detect.rules.loss.logits_for_probabilities import LogitsForProbabilities
from undertow.detect.rules.loss.probabilities_for_logits import ProbabilitiesForLogits
from undertow.detect.rules.loss.softmax_over_wrong_dimension import SoftmaxOverWrongDimension
from undertow.schema import LossKind

INPUTS = (ProbabilitiesForLogits, LogitsForProbabilities, SoftmaxOverWrongDimension)


def test_logits_where_log_probabilities_belong() -> None:
    scalars = {"loss_kind": LossKind.NEGATIVE_LOG_LIKELIHOOD, "loss_input_is_logit": 1.0}
    (finding,) = training(*INPUTS).run(2, scalars=scalars).findings()
    assert finding.evidence[0].quantity == "loss_input_is_logit"
    assert finding.variant == "logits-for-probabilities"
    assert "log-probabilities" in finding.summary
