"""What the loss function was given: every scalar against a value computed by hand in the same loop."""

from __future__ import annotations

import gc
import math
import weakref

import numpy as np
import pytest
import torch
from tests.probe.training import batches, mlp
from torch import nn
from torch.nn import functional as F  # noqa: N812

from undertow.probe.signals.kl_divergence import read_latent
from undertow.schema import Floor, LossKind, LossReduction

ROWS, CLASSES = 12, 4
LABELS = torch.tensor([0, 0, 1, 2, 3, 3, 1, 0, 2, 2, 2, 1])
GENERATOR = torch.Generator().manual_seed(5)
TARGETS = torch.randn(ROWS, CLASSES, generator=GENERATOR)
SHARES = torch.randn(ROWS, CLASSES, generator=GENERATOR).softmax(1)


def one_step(watch, loss_of, model=None, steps=1, **arguments):
    """Train with this loss; the scalars of the first step, and the outputs they speak of."""
    model = model or mlp(6, 10, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    outputs = []
    with watch(model, **arguments) as w:
        for step in range(steps):
            optimizer.zero_grad()
            output = model(batches(6, ROWS)(step))
            outputs.append(output.detach().clone())
            loss_of(output).backward()
            optimizer.step()
    run = w.run
    assert run.status == "finished"
    return {name: run.scalars(name) for name in run.scalar_names}, outputs


def first(scalars):
    return {name: values[0] for name, values in scalars.items()}


CROSS_ENTROPIES = {
    "functional": lambda x: F.cross_entropy(x, LABELS),
    "module": lambda x: nn.CrossEntropyLoss()(x, LABELS),
    "label smoothing": lambda x: F.cross_entropy(x, LABELS, label_smoothing=0.1),
    "class weights": lambda x: F.cross_entropy(x, LABELS, weight=torch.tensor([1.0, 2.0, 3.0, 4.0])),
    "averaged by hand": lambda x: F.cross_entropy(x, LABELS, reduction="none").mean(),
    "summed, then divided": lambda x: F.cross_entropy(x, LABELS, reduction="sum") / ROWS,
    "log-softmax and nll": lambda x: F.nll_loss(x.log_softmax(1), LABELS),
    "gathered": lambda x: -x.log_softmax(1).gather(1, LABELS[:, None]).mean(),
    "indexed": lambda x: -x.log_softmax(-1)[torch.arange(ROWS), LABELS].mean(),
    "one-hot": lambda x: F.cross_entropy(x, F.one_hot(LABELS, CLASSES).float()),
    "one-hot by hand": lambda x: -(F.one_hot(LABELS, CLASSES) * x.log_softmax(1)).sum(1).mean(),
    "classes in the middle": lambda x: F.cross_entropy(
        x.reshape(3, 4, CLASSES).transpose(1, 2), LABELS.reshape(3, 4)
    ),
    "rows of tokens": lambda x: F.cross_entropy(x.reshape(3, 4, CLASSES).reshape(-1, CLASSES), LABELS),
    "softened by a mask": lambda x: F.cross_entropy(x, LABELS, reduction="none")[LABELS >= 0].mean(),
    "autocast": lambda x: F.cross_entropy(x.bfloat16().float(), LABELS),
}  # fmt: skip


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


@pytest.mark.parametrize("name", CROSS_ENTROPIES)
def test_cross_entropy(watch, name):
    scalars, (logits, *_) = one_step(watch, CROSS_ENTROPIES[name])
    found = first(scalars)
    assert found["loss_kind"] == LossKind.CROSS_ENTROPY
    assert found["loss_reduction"] == LossReduction.MEAN
    assert found["loss_factor"] == pytest.approx(1.0)
    assert (found["loss_rows"], found["loss_classes"]) == (ROWS, CLASSES)
    assert found["loss_input_is_probability"] == 0.0
    assert "loss_broadcast" not in found
    exact = logits.double()
    assert found["output_accuracy"] == pytest.approx(float((exact.argmax(1) == LABELS).double().mean()))
    assert found["output_max_probability"] == pytest.approx(float(exact.softmax(1).max(1).values.mean()), rel=1e-2)
    shares = np.bincount(LABELS.numpy()) / ROWS
    assert found["label_entropy"] == pytest.approx(-(shares * np.log(shares)).sum())
    repeats = np.mean(LABELS.numpy()[1:] == LABELS.numpy()[:-1])
    assert found["label_repeat"] == pytest.approx(repeats - (shares**2).sum())
    if name not in ("classes in the middle",):
        assert found["output_log_z"] == pytest.approx(float(exact.logsumexp(1).mean()), rel=1e-2)


FACTORS = {
    "accumulated": (lambda x: F.cross_entropy(x, LABELS) / 16, 1 / 16),
    "multiplied": (lambda x: 0.3 * F.cross_entropy(x, LABELS), 0.3),
    "by a tensor": (lambda x: torch.tensor(0.3) * F.cross_entropy(x, LABELS), 0.3),
    "flipped": (lambda x: -F.cross_entropy(x, LABELS), -1.0),
    "flipped by hand": (lambda x: x.log_softmax(1).gather(1, LABELS[:, None]).mean(), -1.0),
    "subtracted": (lambda x: 5.0 - F.cross_entropy(x, LABELS), -1.0),
    "twice": (lambda x: (F.cross_entropy(x, LABELS) / 4) * 2, 0.5),
    "summed": (lambda x: F.cross_entropy(x, LABELS, reduction="sum"), 1.0),
    "smoothed and accumulated": (lambda x: F.cross_entropy(x, LABELS, label_smoothing=0.2) / 4, 0.25),
    "mean of two losses": (lambda x: torch.stack([F.cross_entropy(x, LABELS), x.square().mean()]).mean(), 0.5),
    "sums of tokens": (lambda x: F.cross_entropy(x, LABELS, reduction="none").view(3, 4).sum(1).mean() / 2, 0.5),
    "several terms": (lambda x: 0.7 * F.cross_entropy(x, LABELS) + 0.3 * F.mse_loss(x, TARGETS), 0.7),
    "weights of rows": (lambda x: (F.cross_entropy(x, LABELS, reduction="none") * SHARES[:, 0]).mean(), math.nan),
    "focal": (lambda x: F.cross_entropy(x, LABELS) * (1 - (-F.cross_entropy(x, LABELS)).exp()) ** 2, math.nan),
}


@pytest.mark.parametrize("name", FACTORS)
def test_loss_factor(watch, name):
    loss_of, expected = FACTORS[name]
    found = first(one_step(watch, loss_of)[0])
    assert found["loss_kind"] == LossKind.CROSS_ENTROPY
    assert found["loss_factor"] == pytest.approx(expected, nan_ok=True)
    if name == "summed":
        assert found["loss_reduction"] == LossReduction.SUM


def test_the_loss_scale_is_no_factor(watch):
    model = mlp(6, 10, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with watch(model) as w:
        for step in range(2):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batches(6, ROWS)(step)), LABELS) / 4
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert w.run.scalars("loss_factor").tolist() == [0.25, 0.25]
    assert w.run.scalars("loss_scale")[0] == 1024.0


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


class Coder(nn.Module):
    def __init__(self, divergence):
        super().__init__()
        self.mean, self.scale, self.decoder = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(3, CLASSES)
        self.divergence = divergence

    def forward(self, x):
        mean, scale = self.mean(x), self.scale(x)
        self.share, variance = self.divergence(mean, scale)
        with torch.no_grad():
            self.nats = 0.5 * float((mean**2 + variance - variance.log() - 1).sum(1).mean())
        return self.decoder(mean + variance.sqrt() * torch.randn_like(mean))


DIVERGENCES = {
    "log-variance": lambda m, s: (-0.5 * (1 + s - m.pow(2) - s.exp()).sum(1).mean(), s.exp()),
    "log-deviation": lambda m, s: (0.5 * (m * m + (2 * s).exp() - 2 * s - 1).mean(), (2 * s).exp()),
    "deviation": lambda m, s: (
        torch.distributions.kl_divergence(
            torch.distributions.Normal(m, F.softplus(s)), torch.distributions.Normal(0.0, 1.0)
        ).mean(),
        F.softplus(s) ** 2,
    ),
}


@pytest.mark.parametrize("name", DIVERGENCES)
def test_what_a_code_tells_of_its_sample_is_measured_in_nats(watch, name):
    model = Coder(DIVERGENCES[name])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, activations=True) as w:
        loss = F.mse_loss(model(batches(6, ROWS)(0)), TARGETS) + model.share
        loss.backward()
        optimizer.step()
    assert w.run.series("latent_nats", "mean")[0] == pytest.approx(model.nats, rel=1e-4)


def test_the_divergence_of_weights_is_no_code():
    model = mlp(6, 10, CLASSES)
    mean, scale = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(4, 3))
    loss = F.mse_loss(model(batches(6, ROWS)(0)), TARGETS) + DIVERGENCES["log-variance"](mean, scale)[0]
    assert read_latent(loss) is None


def test_where_wrong_answers_have_the_label(watch):
    scalars, outputs = one_step(watch, lambda x: F.cross_entropy(x, LABELS))
    order = outputs[0].argsort(1, descending=True)
    ranks = [(row == label).nonzero().item() for row, label in zip(order, LABELS, strict=True)]
    expected = np.mean([(rank - 1) / (CLASSES - 2) for rank in ranks if rank > 0])
    assert first(scalars)["output_miss_rank"] == pytest.approx(expected)


def test_places_of_a_sequence_are_no_samples(watch):
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, CLASSES)

        def forward(self, x):
            return self.head(x.reshape(-1, 2, 3)).flatten(0, 1)

    labels = LABELS.repeat(2)
    assert "output_miss_rank" not in one_step(watch, lambda x: F.cross_entropy(x, labels), Reader())[0]


def test_targets_that_come_again(watch):
    new = iter(range(10))
    of = {
        "copies": (lambda x: F.cross_entropy(x, LABELS.clone()), {0.5, 1.0}),  # memory may be used again at once
        "one tensor": (lambda x: F.cross_entropy(x, LABELS), {0.5}),
        "others": (lambda x: F.cross_entropy(x, LABELS.roll(next(new))), {0.0}),
        "numbers": (lambda x: F.mse_loss(x, TARGETS), {0.5}),
    }
    for loss_of, expected in of.values():
        found = one_step(watch, loss_of, steps=4)[0]["targets_repeated"]
        assert np.isnan(found[0])
        assert set(found[1:].tolist()) <= expected


def test_a_flow_and_its_log_determinant(watch):
    def flow(sign):
        def loss_of(x):
            scale = x.tanh()
            return (0.5 * (TARGETS * scale.exp()).square() - sign * scale).sum(1).mean()

        return loss_of

    assert first(one_step(watch, flow(1.0), activations=True)[0])["loss_without_floor"] == 0.0
    assert first(one_step(watch, flow(-1.0), activations=True)[0])["loss_without_floor"] == 1.0


def test_pinball(watch):
    levels = torch.tensor([0.1, 0.4, 0.6, 0.9])

    def pinball(x, choose):
        error = TARGETS[:, :1] - x
        return choose(levels * error, (levels - 1) * error).mean()

    for loss_of, factor in (
        (lambda x: pinball(x, torch.maximum), 1.0),
        (lambda x: pinball(x, torch.max), 1.0),
        (lambda x: pinball(x, torch.minimum), -1.0),
        (lambda x: -pinball(x, torch.maximum), -1.0),
    ):
        found = first(one_step(watch, loss_of)[0])
        assert (found["loss_kind"], found["loss_factor"]) == (LossKind.ABSOLUTE, pytest.approx(factor))
        assert found.get("loss_broadcast") in (None, 0.0)
    found = first(one_step(watch, lambda x: torch.maximum(0.9 * (TARGETS - x), -0.1 * (TARGETS - x)).mean())[0])
    assert found["loss_kind"] == LossKind.UNKNOWN  # two differences: it cannot be known that they are the same


def test_numbers_of_elementwise_losses(watch):
    for loss_of, kind in (
        (lambda x: F.mse_loss(x, 3 * TARGETS + 1), LossKind.MEAN_SQUARE),
        (lambda x: F.smooth_l1_loss(x, 3 * TARGETS + 1), LossKind.ABSOLUTE),
    ):
        scalars, (output, *_) = one_step(watch, loss_of)
        found = first(scalars)
        assert found["loss_kind"] == kind
        assert (found["loss_rows"], found["loss_classes"]) == (ROWS, CLASSES)
        assert found["prediction_mean"] == pytest.approx(float(output.double().mean()))
        assert found["prediction_std"] == pytest.approx(float(output.double().std(correction=0)))
        assert found["target_mean"] == pytest.approx(float((3 * TARGETS + 1).double().mean()))
        assert found["target_std"] == pytest.approx(float((3 * TARGETS + 1).double().std(correction=0)))
        assert "output_accuracy" not in found
        assert "label_entropy" not in found


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


def test_a_sum_divided_by_its_samples_is_a_mean(watch):
    for divisor, factor, reduction in ((ROWS, 1.0, LossReduction.MEAN), (7, 1 / 7, LossReduction.SUM)):
        found = first(one_step(watch, lambda x, n=divisor: F.mse_loss(x, TARGETS, reduction="sum") / n)[0])
        assert found["loss_factor"] == pytest.approx(factor)
        assert found["loss_reduction"] == reduction


def test_logits_of_a_linear_layer_of_three_dimensions(watch):
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.GRU(3, 8, batch_first=True), nn.Linear(8, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x.reshape(ROWS, 2, 3))[0])

    labels = LABELS.repeat_interleave(2)
    scalars, (logits, *_) = one_step(watch, lambda x: F.cross_entropy(x.reshape(-1, CLASSES), labels), Tokens())
    expected = logits.double().reshape(-1, CLASSES).logsumexp(1).mean()
    assert first(scalars)["output_log_z"] == pytest.approx(float(expected), rel=1e-5)


def test_binary_losses(watch):
    labels = (LABELS > 1).float()
    shares = np.array([np.mean(LABELS.numpy() <= 1), np.mean(LABELS.numpy() > 1)])
    entropy = -(shares * np.log(shares)).sum()
    found = first(one_step(watch, lambda x: F.binary_cross_entropy_with_logits(x[:, 0], labels))[0])
    assert (found["loss_kind"], found["loss_input_is_probability"]) == (LossKind.BINARY_OF_LOGITS, 0.0)
    assert found["label_entropy"] == pytest.approx(entropy)
    found = first(one_step(watch, lambda x: F.binary_cross_entropy(x[:, 0].sigmoid(), labels))[0])
    assert (found["loss_kind"], found["loss_input_is_logit"]) == (LossKind.BINARY_OF_PROBABILITIES, 0.0)
    assert found["target_mean"] == pytest.approx(shares[1])
    found = first(one_step(watch, lambda x: F.binary_cross_entropy_with_logits(x, SHARES))[0])
    assert "label_entropy" not in found


def test_divergence(watch):
    def distil(x):
        return F.kl_div((x / 2).log_softmax(1), SHARES, reduction="batchmean") * 4

    found = first(one_step(watch, distil)[0])
    assert (found["loss_kind"], found["loss_factor"]) == (LossKind.DIVERGENCE, pytest.approx(4.0))
    assert found["loss_input_is_logit"] == 0.0
    assert (found["loss_rows"], found["loss_classes"]) == (ROWS, CLASSES)
    assert "label_entropy" not in found
    found = first(one_step(watch, lambda x: F.kl_div(x.softmax(1), SHARES, reduction="batchmean"))[0])
    assert (found["loss_kind"], found["loss_input_is_logit"]) == (LossKind.DIVERGENCE, 1.0)


def test_soft_targets_count_by_their_largest_share(watch):
    scalars, (logits, *_) = one_step(watch, lambda x: F.cross_entropy(x, SHARES))
    found, best = first(scalars), SHARES.argmax(1)
    assert found["loss_factor"] == pytest.approx(1.0)
    assert found["output_accuracy"] == pytest.approx(float((logits.argmax(1) == best).double().mean()))
    shares = np.bincount(best.numpy(), minlength=CLASSES) / ROWS
    assert found["label_entropy"] == pytest.approx(-(shares[shares > 0] * np.log(shares[shares > 0])).sum())


def test_padding_is_left_out(watch):
    labels = LABELS.clone()
    labels[::3] = -100
    kept = labels >= 0
    scalars, (logits, *_) = one_step(watch, lambda x: F.cross_entropy(x, labels))
    found = first(scalars)
    assert found["loss_rows"] == ROWS
    right = (logits.argmax(1) == labels)[kept].double().mean()
    assert found["output_accuracy"] == pytest.approx(float(right))
    shares = np.bincount(labels[kept].numpy()) / int(kept.sum())
    assert found["label_entropy"] == pytest.approx(-(shares * np.log(shares)).sum())


def test_labels_are_pooled_over_steps(watch):
    steps = [torch.full((ROWS,), step) for step in range(CLASSES)]
    counter = iter(steps)
    scalars, _ = one_step(watch, lambda x: F.cross_entropy(x, next(counter)), steps=CLASSES)
    np.testing.assert_allclose(scalars["label_entropy"], 0.0, atol=1e-12)
    np.testing.assert_allclose(scalars["label_entropy_pooled"], np.log(np.arange(1, CLASSES + 1)), atol=1e-12)
    np.testing.assert_allclose(scalars["label_repeat"], 1 - 1 / np.arange(1, CLASSES + 1), atol=1e-12)


def test_a_loss_computed_inside_the_model_under_autocast(watch):
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(6, 10, CLASSES)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.body(x)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    model = WithLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watch(model) as w:
        with torch.autocast("cpu", torch.bfloat16):
            out = model(batches(6, ROWS)(0), LABELS)
        out["loss"].backward()
        optimizer.step()
    logits = out["logits"].detach().double()
    assert w.run.scalars("loss_kind").tolist() == [LossKind.CROSS_ENTROPY]
    assert w.run.scalars("output_log_z")[0] == pytest.approx(float(logits.logsumexp(1).mean()), rel=2e-2)
    assert w.run.scalars("output_accuracy")[0] == pytest.approx(float((logits.argmax(1) == LABELS).double().mean()))


def test_accumulation_shows_the_factor_of_each_part(watch):
    model = mlp(6, 10, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watch(model) as w:
        for _ in range(2):
            optimizer.zero_grad()
            for part in range(4):
                (F.cross_entropy(model(batches(6, ROWS)(part)), LABELS) / 4).backward()
            optimizer.step()
    assert w.run.scalars("backward_count").tolist() == [4.0, 4.0]
    assert w.run.scalars("loss_factor").tolist() == [0.25, 0.25]


UNKNOWN = {
    "policy gradient": lambda x: -(x.log_softmax(1).gather(1, LABELS[:, None])[:, 0] * TARGETS[:, 0]).mean(),
    "a norm": lambda x: x.norm(),
    "between two outputs": lambda x: (x[:6] - x[6:]).square().mean(),
    "energy": lambda x: x.logsumexp(1).mean(),
}


MICRO_BATCHES = {
    "mean of means": (lambda x, y, rows: F.cross_entropy(x, y) / 3, 4.0),
    "sum over all rows": (lambda x, y, rows: F.cross_entropy(x, y, reduction="sum") / rows, 1.0),
    "sums divided by their own rows": (lambda x, y, rows: F.cross_entropy(x, y, reduction="sum") / len(y) / 3, 4.0),
    "squares": (lambda x, y, rows: F.mse_loss(x, TARGETS[y]) / 3, 4.0),
    "unknown": (lambda x, y, rows: x.exp().sum(), None),
}


@pytest.mark.parametrize("name", MICRO_BATCHES)
def test_what_a_row_counts_in_each_micro_batch(watch, name):
    loss_of, expected = MICRO_BATCHES[name]
    model = mlp(6, 10, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs, parts = batches(6, ROWS)(0), (slice(0, 2), slice(2, 4), slice(4, 12))
    with watch(model) as w:
        for part in parts:
            loss_of(model(inputs[part]), LABELS[part], ROWS).backward()
        optimizer.step()
    known = "micro_batch_spread" in w.run.scalar_names
    assert known == (expected is not None)
    assert not known or w.run.scalars("micro_batch_spread").tolist() == [pytest.approx(expected)]


def test_ignored_labels_are_no_rows_of_a_micro_batch(watch):
    model = mlp(6, 10, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    labels = LABELS.clone()
    labels[4:7] = -100
    with watch(model) as w:
        for part in (slice(0, 4), slice(4, 8), slice(8, 12)):
            (F.cross_entropy(model(batches(6, ROWS)(0)[part]), labels[part]) / 3).backward()
        optimizer.step()
    assert w.run.scalars("micro_batch_spread").tolist() == [pytest.approx(4.0)]


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_known_is_absent(watch, name):
    found = first(one_step(watch, UNKNOWN[name])[0])
    assert found["loss_kind"] == LossKind.UNKNOWN
    signals = ("loss_factor", "loss_rows", "loss_input_is_probability", "loss_broadcast", "label_entropy")
    assert not [signal for signal in signals if signal in found]


def test_nothing_is_read_behind_hooks_on_saved_tensors(watch):
    unpacked = []

    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        unpacked.append(tensor.shape)
        return tensor

    model = mlp(6, 10, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watch(model) as w, torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        loss = F.cross_entropy(model(batches(6, ROWS)(0)), LABELS)
        before = len(unpacked)
        loss.backward()
        assert len(unpacked) > before
        once = len(unpacked)
        optimizer.step()
    assert "label_entropy" not in w.run.scalar_names
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        unpacked.clear()
        F.cross_entropy(model(batches(6, ROWS)(0)), LABELS).backward()
    assert len(unpacked) == once


class Same(torch.autograd.Function):
    """An operation whose node, unlike those of torch itself, can be referred to weakly."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def test_the_graph_is_let_go(watch):
    model = mlp(6, 10, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    gc.disable()
    try:
        with watch(model, activations=True):
            output = Same.apply(model(batches(6, ROWS)(0)))
            loss = F.cross_entropy(output, LABELS)
            gone = weakref.ref(output.grad_fn)
            loss.backward()
            optimizer.step()
            assert gone() is not None
            del loss, output
            assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(("scores", "expected"), [("log_softmax", 0.0), ("softmax", 1.0)])
def test_what_an_alignment_is_given(watch, scores, expected):
    def loss_of(x):
        steps = getattr(x.reshape(6, 2, CLASSES), scores)(-1)
        lengths = torch.tensor([6, 6]), torch.tensor([2, 2])
        return F.ctc_loss(steps, torch.tensor([[1, 2], [3, 1]]), *lengths, zero_infinity=True)

    found = first(one_step(watch, loss_of)[0])
    assert (found["loss_kind"], found["loss_input_is_logit"]) == (LossKind.ALIGNMENT, expected)
    assert "loss_classes" not in found


@pytest.mark.parametrize(("sign", "expected"), [(1.0, None), (-1.0, Floor.REWARDS_NORMALISER)])
def test_a_penalty_on_the_normaliser(watch, sign, expected):
    def loss_of(x):
        return F.cross_entropy(x, LABELS) + sign * 0.02 * x.logsumexp(-1).square().mean()

    assert first(one_step(watch, loss_of, activations=True)[0]).get("loss_without_floor") == expected


def test_the_layer_whose_output_the_loss_was_given(watch):
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.policy, self.value = nn.Linear(6, 8), nn.Linear(8, CLASSES), nn.Linear(8, 1)
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            hidden = torch.relu(self.body(x))
            return self.policy(hidden) * self.scale, self.value(hidden).tanh()

    model, found = Heads(), []
    for of in (
        lambda policy, value: F.cross_entropy(policy, LABELS) + 0 * value.sum(),
        lambda policy, value: (value - TARGETS[:, 0]).square().mean() + F.cross_entropy(policy, LABELS),
    ):
        with watch(model) as w:
            of(*model(batches(6, ROWS)(0))).backward()
            torch.optim.SGD(model.parameters(), lr=0.05).step()
        found.append(w.run.layers[int(w.run.scalars("loss_layer")[0])].group)
    assert found == ["policy", "value"]  # of the second sum, the part whose shapes are wrong
