"""What a row counts in the loss: constant factors, sums and means, micro-batches."""

from __future__ import annotations

import math

import pytest
import torch
from tests.probe.signals.loss_steps import CLASSES, LABELS, ROWS, SHARES, TARGETS, first, one_step
from tests.probe.training import batches, mlp
from torch.nn import functional as F  # noqa: N812

from undertow.schema import LossKind, LossReduction

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


def test_a_sum_divided_by_its_samples_is_a_mean(watch):
    for divisor, factor, reduction in ((ROWS, 1.0, LossReduction.MEAN), (7, 1 / 7, LossReduction.SUM)):
        found = first(one_step(watch, lambda x, n=divisor: F.mse_loss(x, TARGETS, reduction="sum") / n)[0])
        assert found["loss_factor"] == pytest.approx(factor)
        assert found["loss_reduction"] == reduction


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
