"""Whether a loss has a least value: what it rewards, and which signs its parts have."""

from __future__ import annotations

import pytest
import torch
from tests.probe.signals.loss_steps import CLASSES, LABELS, SHARES, TARGETS, first, one_step
from tests.probe.training import mlp
from torch.nn import functional as F  # noqa: N812

from undertow.schema import Floor


def of_parts(loss_of):
    """A loss of two halves: a mean with its squared error, and a log-scale."""

    def whole(x):
        mean, scale = x.chunk(2, 1)
        return loss_of((mean - TARGETS[:, :2]).square(), scale).mean()

    return whole


FLOORS = {
    "deviation": (of_parts(lambda error, s: error * (-s).exp() + s), 0.0),
    "deviation, wrong": (of_parts(lambda error, s: error * (-s).exp() - s), 1.0),
    "deviation, divided by": (of_parts(lambda error, s: 0.5 * (error.sqrt() / s.exp()) ** 2 + s), 0.0),
    "deviation, divided, wrong": (of_parts(lambda error, s: error / (2 * s.exp().square() + 1e-6) - s), 1.0),
    "deviation, both": (of_parts(lambda error, s: error / s.exp() + s.exp() * error - s), 0.0),
    "deviation, left out": (of_parts(lambda error, s: error * (-s).exp()), None),
    "another part": (lambda x: (x[:, :2] + (-x[:, 2:]).exp() * TARGETS[:, :2].square()).mean(), None),
    "latent": (of_parts(lambda error, s: error + s.exp() - 1 - s), 0.0),
    "latent, turned round": (of_parts(lambda error, s: error - 0.1 * (s.exp() - 1 - s)), 1.0),
    "latent, wrong": (of_parts(lambda error, s: error + s.exp() - 1 + s), 1.0),
    "counts": (lambda x: (x.exp() - SHARES * x).mean(), 0.0),
    "counts, wrong": (lambda x: (x.exp() + SHARES * x).mean(), 1.0),
    "weights of both signs": (lambda x: (x.exp() - TARGETS * x).mean(), None),
    "entropy by hand": (lambda x: (x.exp().sum(1).log() - x[:, 0]).mean(), None),
}


@pytest.mark.parametrize("name", FLOORS)
def test_a_loss_has_a_floor_where_values_pull_against_their_exponentials(watch, name):
    loss_of, expected = FLOORS[name]
    assert first(one_step(watch, loss_of, activations=True)[0]).get("loss_without_floor") == expected


def density(x):
    return torch.distributions.Normal(x[:, 0], F.softplus(x[:, 1]) + 1e-3).log_prob(TARGETS[:, 0])


def mixture(x):
    weight, mean = x.chunk(2, 1)
    return torch.logsumexp(weight.log_softmax(1) - 0.5 * ((TARGETS[:, :1] - mean) / 0.3) ** 2, 1)


def nearest(x):
    return torch.logsumexp(-((x - TARGETS) ** 2), 1) + (x[:, 0] - TARGETS[:, 0]) ** 2


MASK = (TARGETS > 0).float()


def dice(x):
    p = x.sigmoid()
    return (2 * (p * MASK).sum(1) + 1) / (p.sum(1) + MASK.sum(1) + 1)


def union(x):
    p = x.sigmoid()
    both = (p * MASK).sum()
    return both / (p.sum() + MASK.sum() - both + 1e-6)


REWARDS = {
    "dice": (lambda x, _: 1 - dice(x).mean(), None),
    "dice, of which the best is minus one": (lambda x, _: -dice(x).mean(), None),
    "dice, wrong": (lambda x, _: dice(x).mean(), 4.0),
    "dice, wrong, beside an error": (lambda x, _: F.mse_loss(x, TARGETS) + 0.5 * dice(x).mean(), 4.0),
    "intersection over union": (lambda x, _: 1 - union(x), None),
    "intersection over union, wrong": (lambda x, _: union(x), 4.0),
    "a mean over a mask": (lambda x, _: (x.square() * MASK).sum() / MASK.sum(), None),
    "a share outside": (lambda x, _: (x.sigmoid() * MASK).sum() / x.sigmoid().sum(), None),
    "density": (lambda x, _: -density(x).mean(), None),
    "density, wrong": (lambda x, _: density(x).mean(), 2.0),
    "density, weighted by returns below zero": (lambda x, _: -(density(x) * -SHARES[:, 0]).mean(), None),
    "mixture": (lambda x, _: -mixture(x).mean(), None),
    "mixture, wrong": (lambda x, _: mixture(x).mean(), 2.0),
    "contrast": (lambda x, _: nearest(x).mean(), None),
    "margin": (lambda x, _: F.relu(1 - (x - TARGETS).square().sum(1)).mean(), None),
    "penalty": (lambda x, m: F.mse_loss(x, TARGETS) + 0.1 * sum(p.square().sum() for p in m.parameters()), None),
    "penalty, wrong": (lambda x, m: F.mse_loss(x, TARGETS) - 0.1 * sum(p.pow(2).sum() for p in m.parameters()), 3.0),
    "norms, wrong": (lambda x, m: F.mse_loss(x, TARGETS) - 0.1 * m[0].weight.norm(), 3.0),
}


@pytest.mark.parametrize("name", REWARDS)
def test_a_loss_that_rewards_errors_or_weights_has_no_floor(watch, name):
    loss_of, expected = REWARDS[name]
    model = mlp(6, 10, CLASSES)
    scalars, _ = one_step(watch, lambda x: loss_of(x, model), model, activations=True)
    assert first(scalars).get("loss_without_floor") == expected


SAME = (LABELS[:, None] == LABELS[None]).float()


def alike(x):
    """The supervised contrast of a batch with itself."""
    z = F.normalize(x, dim=1)
    return ((z @ z.T / 0.2).log_softmax(1) * SAME).sum(1) / SAME.sum(1)


def nearest_of_all(x):
    logits = x @ x.T / 0.5
    return logits.diag() - torch.logsumexp(logits, 1)


LIKELIHOODS = {
    "contrast": (lambda x: -alike(x).mean(), False),
    "contrast, wrong": (lambda x: alike(x).mean(), True),
    "pairs": (lambda x: -nearest_of_all(x).mean(), False),
    "pairs, wrong": (lambda x: 0.5 * nearest_of_all(x).mean(), True),
    "soft targets": (lambda x: -(SHARES * x.log_softmax(1)).sum(1).mean(), False),
    "soft targets, wrong": (lambda x: (SHARES * x.log_softmax(1)).sum(1).mean(), True),
    "pushed from some, drawn to others": (
        lambda x: (0.1 * (1 - SAME[:, :4]) - SAME[:, :4]).mul(x.log_softmax(1)).sum(1).mean(), False
    ),
    "costs of a policy": (lambda x: (x.log_softmax(1)[:, 0] * SHARES[:, 0]).mean(), False),
    "more than chance": (lambda x: (x.softmax(1) * x.log_softmax(1)).sum(1).mean(), False),
    "torch's own": (lambda x: F.cross_entropy(x, SHARES), False),
    "smoothed": (lambda x: F.cross_entropy(x, LABELS, label_smoothing=0.1), False),
}  # fmt: skip


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_right_answers_are_made_likely(watch, name):
    loss_of, wrong = LIKELIHOODS[name]
    form = first(one_step(watch, loss_of, activations=True)[0]).get("loss_without_floor")
    assert (form == Floor.LOWERS_LIKELIHOOD) == wrong


def test_a_flow_and_its_log_determinant(watch):
    def flow(sign):
        def loss_of(x):
            scale = x.tanh()
            return (0.5 * (TARGETS * scale.exp()).square() - sign * scale).sum(1).mean()

        return loss_of

    assert first(one_step(watch, flow(1.0), activations=True)[0])["loss_without_floor"] == 0.0
    assert first(one_step(watch, flow(-1.0), activations=True)[0])["loss_without_floor"] == 1.0


@pytest.mark.parametrize(("sign", "expected"), [(1.0, None), (-1.0, Floor.REWARDS_NORMALISER)])
def test_a_penalty_on_the_normaliser(watch, sign, expected):
    def loss_of(x):
        return F.cross_entropy(x, LABELS) + sign * 0.02 * x.logsumexp(-1).square().mean()

    assert first(one_step(watch, loss_of, activations=True)[0]).get("loss_without_floor") == expected
