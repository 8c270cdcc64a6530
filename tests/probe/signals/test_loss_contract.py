"""Whether a loss function was given what it expects: logits, probabilities, shapes that fit, targets in range."""

from __future__ import annotations

import math

import pytest
import torch
from tests.probe.signals.loss_steps import CLASSES, LABELS, ROWS, SHARES, TARGETS, first, one_step
from torch.nn import functional as F  # noqa: N812

from undertow.schema import LossKind


@pytest.mark.parametrize(
    ("loss_of", "expected"),
    [
        (lambda x: F.cross_entropy(F.relu(x), LABELS), 1.0),
        (lambda x: F.binary_cross_entropy_with_logits(F.relu(x)[:, 0], (LABELS > 1).float()), 1.0),
        (lambda x: F.cross_entropy(F.relu(x) @ torch.eye(CLASSES), LABELS), 0.0),
    ],
)
def test_logits_out_of_a_relu(watch, loss_of, expected):
    assert first(one_step(watch, loss_of)[0])["loss_input_is_rectified"] == expected


PROBABILITIES = {
    "softmax": lambda x: F.cross_entropy(x.softmax(1), LABELS),
    "softmax of tokens": lambda x: F.cross_entropy(x.softmax(1).reshape(3, 4, -1).transpose(1, 2), LABELS.view(3, 4)),
    "softmax by hand": lambda x: F.cross_entropy(x.exp() / x.exp().sum(1, keepdim=True), LABELS),
    "clamped softmax": lambda x: F.cross_entropy(x.softmax(1).clamp(1e-6, 1), LABELS),
    "rows a mask chooses": lambda x: F.cross_entropy(x.softmax(1)[LABELS > 0], LABELS[LABELS > 0]),
    "the last token": lambda x: F.cross_entropy(x.reshape(3, 4, -1).softmax(-1)[:, -1], LABELS[:3]),
    "sigmoid": lambda x: F.cross_entropy(x.sigmoid(), LABELS),
    "sigmoid twice": lambda x: F.binary_cross_entropy_with_logits(x.sigmoid(), SHARES),
    "beside another loss": lambda x: F.cross_entropy(x.softmax(1), LABELS) + F.cross_entropy(x, LABELS),
    "with a temperature": lambda x: F.cross_entropy(x.softmax(1) / 2.0, LABELS),
    "distilled": lambda x: F.kl_div((x.softmax(1) / 2.0).log_softmax(1), SHARES, reduction="batchmean"),
}


@pytest.mark.parametrize("name", PROBABILITIES)
def test_probabilities_where_logits_belong(watch, name):
    assert first(one_step(watch, PROBABILITIES[name])[0])["loss_input_is_probability"] == 1.0


def test_a_quotient_that_is_no_probability(watch):
    found = first(one_step(watch, lambda x: F.cross_entropy(x / x.norm(dim=1, keepdim=True), LABELS))[0])
    assert found["loss_input_is_probability"] == 0.0


def test_sharpened_probabilities_and_distilled_logits_are_left_alone(watch):
    for loss_of in (
        lambda x: F.cross_entropy(20 * x.softmax(1), LABELS),
        lambda x: F.kl_div((x / 2.0).log_softmax(1), SHARES, reduction="batchmean"),
    ):
        assert first(one_step(watch, loss_of)[0])["loss_input_is_probability"] == 0.0


OTHER_DIMENSIONS = {
    "rows": (lambda x: F.nll_loss(x.log_softmax(0), LABELS), 1.0),
    "tokens": (lambda x: F.nll_loss(x.view(3, 4, CLASSES).log_softmax(-1), LABELS[:12].view(3, 4)), 1.0),
    "gathered": (lambda x: -x.log_softmax(0).gather(1, LABELS[:, None]).mean(), 1.0),
    "classes": (lambda x: F.nll_loss(x.log_softmax(1), LABELS), 0.0),
    "classes, moved": (
        lambda x: F.nll_loss(x.view(3, 4, CLASSES).log_softmax(-1).transpose(1, 2), LABELS.view(3, 4)),
        0.0,
    ),
    "classes, gathered": (lambda x: -x.log_softmax(-1).gather(1, LABELS[:, None]).mean(), 0.0),
}


@pytest.mark.parametrize("name", OTHER_DIMENSIONS)
def test_a_softmax_over_another_dimension_than_the_classes(watch, name):
    loss_of, expected = OTHER_DIMENSIONS[name]
    found = first(one_step(watch, loss_of)[0])
    assert found["loss_kind"] == LossKind.CROSS_ENTROPY
    assert found["loss_input_is_logit"] == expected


LOGITS = {
    "logits": (lambda x: F.nll_loss(x, LABELS), 1.0),
    "probabilities": (lambda x: F.nll_loss(x.softmax(1), LABELS), 1.0),
    "logarithms": (lambda x: F.nll_loss((x.softmax(1) + 1e-8).log(), LABELS), 0.0),
}


@pytest.mark.parametrize("name", LOGITS)
def test_logits_where_log_probabilities_belong(watch, name):
    loss_of, expected = LOGITS[name]
    found = first(one_step(watch, loss_of)[0])
    assert found["loss_kind"] == LossKind.NEGATIVE_LOG_LIKELIHOOD
    assert found["loss_input_is_logit"] == expected
    assert "output_accuracy" not in found


BROADCASTS = {
    "column against row": (lambda x: F.mse_loss(x[:, :1], TARGETS[:, 0]), 1.0),
    "row against column": (lambda x: F.mse_loss(x[:, 0], TARGETS[:, :1]), 1.0),
    "by hand": (lambda x: (x[:, :1] - TARGETS[:, 0]).pow(2).mean(), 1.0),
    "absolute": (lambda x: F.l1_loss(x[:, :1], TARGETS[:, 0]), 1.0),
    "smooth": (lambda x: F.smooth_l1_loss(x[:, :1], TARGETS[:, 0]), 1.0),
    "huber": (lambda x: F.huber_loss(x[:, :1], TARGETS[:, 0]), 1.0),
    "alike": (lambda x: F.mse_loss(x, TARGETS), 0.0),
    "alike by hand": (lambda x: (x - TARGETS).square().mean(), 0.0),
    "squeezed": (lambda x: F.mse_loss(x[:, :1].squeeze(1), TARGETS[:, 0]), 0.0),
    "one target for all": (lambda x: F.mse_loss(x, torch.ones(1)), 0.0),
    "quantiles of one target": (lambda x: (x - TARGETS[:, :1]).abs().mean(), 0.0),
}

STRETCHED = {
    "square, multiplied out": (lambda x: ((x[:, :1] - TARGETS[:, 0]) * (x[:, :1] - TARGETS[:, 0])).mean(), True),
    "hyperbolic": (lambda x: torch.log(torch.cosh(x[:, :1] - TARGETS[:, 0])).mean(), True),
    "hyperbolic, as it should be": (lambda x: torch.log(torch.cosh(x[:, 0] - TARGETS[:, 0])).mean(), False),
    "counts": (lambda x: F.poisson_nll_loss(x[:, :1], TARGETS[:, 0].abs()), True),
    "counts, as they should be": (lambda x: F.poisson_nll_loss(x[:, :1], TARGETS[:, :1].abs()), False),
    "margin": (lambda x: (1 - TARGETS[:, 0].sign() * x[:, :1]).clamp(min=0).mean(), True),
    "kernel": (lambda x: torch.exp(-((x[:, :1] - TARGETS[:, 0]) ** 2)).mean(), False),
    "risk sets": (lambda x: torch.log((x[:, :1].exp() * torch.ones(ROWS, ROWS).tril()).sum(0)).mean(), False),
    "all pairs": (lambda x: F.softplus(x[:, :1] - x[:, 0]).mean(), False),
}


@pytest.mark.parametrize("name", STRETCHED)
def test_a_column_that_met_a_row_in_a_loss_of_ones_own(watch, name):
    loss_of, expected = STRETCHED[name]
    assert (first(one_step(watch, loss_of)[0]).get("loss_broadcast") == 1.0) == expected


@pytest.mark.parametrize("name", BROADCASTS)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_broadcast(watch, name):
    loss_of, expected = BROADCASTS[name]
    found = first(one_step(watch, loss_of)[0])
    assert found.get("loss_broadcast") == expected
    if expected is not None:
        assert found["loss_kind"] in (LossKind.MEAN_SQUARE, LossKind.ABSOLUTE)
        assert found["loss_factor"] == pytest.approx(1.0)


def test_targets_outside_of_the_range_of_the_output(watch):
    def share(least: float, largest: float) -> float:
        beyond = TARGETS - TARGETS.clip(least, largest)
        return float(beyond.square().mean() / TARGETS.var(correction=0))

    reaches = {
        "relu": (lambda x: F.mse_loss(x.relu(), TARGETS), share(0.0, math.inf)),
        "by hand": (lambda x: ((x.relu() - TARGETS) ** 2).mean(), share(0.0, math.inf)),
        "the other way round": (lambda x: (TARGETS - x.tanh()).abs().mean(), share(-1.0, 1.0)),
        "sigmoid": (lambda x: F.smooth_l1_loss(x.sigmoid(), TARGETS), share(0.0, 1.0)),
        "in reach": (lambda x: F.mse_loss(x.softmax(1), SHARES), 0.0),
        "binary": (lambda x: F.binary_cross_entropy_with_logits(x, TARGETS), share(0.0, 1.0)),
        "shares": (lambda x: F.binary_cross_entropy(x.sigmoid(), SHARES), 0.0),
    }
    for name, (loss_of, expected) in reaches.items():
        scalars, _ = one_step(watch, loss_of)
        assert scalars["targets_beyond_reach"][0] == pytest.approx(expected, abs=1e-5), name
    for loss_of in (lambda x: F.mse_loss(x, TARGETS), lambda x: F.mse_loss(2 * x.sigmoid(), TARGETS)):
        assert "targets_beyond_reach" not in one_step(watch, loss_of)[0]


@pytest.mark.parametrize(("scores", "expected"), [("log_softmax", 0.0), ("softmax", 1.0)])
def test_what_an_alignment_is_given(watch, scores, expected):
    def loss_of(x):
        steps = getattr(x.reshape(6, 2, CLASSES), scores)(-1)
        lengths = torch.tensor([6, 6]), torch.tensor([2, 2])
        return F.ctc_loss(steps, torch.tensor([[1, 2], [3, 1]]), *lengths, zero_infinity=True)

    found = first(one_step(watch, loss_of)[0])
    assert (found["loss_kind"], found["loss_input_is_logit"]) == (LossKind.ALIGNMENT, expected)
    assert "loss_classes" not in found
