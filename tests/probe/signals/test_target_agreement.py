"""Do answers fit their own targets? The test by exchange, against all exchanges, and where the loss is by hand."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from tests.probe.training import batches, mlp
from torch import nn
from torch.nn import functional as F  # noqa: N812

from undertow.probe.signals import target_agreement as agreement

RANDOM = np.random.default_rng(3)


def agreement_of_classes(logs, labels, places):
    """Of a single batch; NaN where nothing can be said."""
    return agreement.agreement_of_classes(logs[None], labels[None], places)[0]


def agreement_of_numbers(prediction, target):
    return agreement.agreement_of_numbers(prediction[None], target[None])[0]


def by_all_exchanges(judged):
    """Of the first eight samples: exactly, over 40 320 exchanges."""
    sums = np.array([judged[range(len(judged)), order].sum() for order in permutations(range(len(judged)))])
    return (np.trace(judged) - sums.mean()) / sums.std()


def test_it_counts_deviations_among_all_exchanges():
    prediction, target = RANDOM.normal(size=(8, 3)), RANDOM.normal(size=(8, 3))
    assert agreement_of_numbers(prediction, target) == pytest.approx(by_all_exchanges(prediction @ target.T))
    logs = np.log(RANDOM.dirichlet(np.ones(5), size=8))
    labels = RANDOM.integers(5, size=8)
    assert agreement_of_classes(logs, labels, 1) == pytest.approx(by_all_exchanges(logs[:, labels]))


def test_what_is_usual_at_a_place_is_no_agreement():
    """Pictures whose upper half is class 0 and whose lower half is class 1, known to the model: nothing is left."""
    labels = np.tile([0, 0, 1, 1], 16)
    logs = np.where(np.eye(2)[labels] > 0, np.log(0.9), np.log(0.1))
    assert np.isnan(agreement_of_classes(logs, labels, 4))
    assert agreement_of_classes(logs, labels, 1) > 5


def test_without_a_relation_it_is_normal_and_with_one_it_is_large():
    drawn = [agreement_of_numbers(RANDOM.normal(size=(40, 1)), RANDOM.normal(size=(40, 1))) for _ in range(400)]
    assert abs(np.mean(drawn)) < 0.2
    assert 0.85 < np.std(drawn) < 1.15
    target = RANDOM.normal(size=(40, 1))
    assert agreement_of_numbers(1e-6 * target + 5, 1e4 * target) == pytest.approx(39**0.5)


@pytest.mark.parametrize("answer", [0.0, 3.5])
def test_one_answer_for_all_agrees_with_nothing(answer):
    assert np.isnan(agreement_of_numbers(np.full((20, 1), answer), RANDOM.normal(size=(20, 1))))
    assert np.isnan(agreement_of_classes(np.full((20, 3), -1.0), RANDOM.integers(3, size=20), 1))


@pytest.mark.parametrize(("rare", "known"), [(2, False), (3, True)])
def test_targets_that_are_nearly_all_alike_say_nothing(rare: int, known: bool) -> None:
    labels = (np.arange(48) < rare).astype(np.int64)
    logs = np.log(RANDOM.dirichlet(np.ones(2), size=48))
    assert np.isnan(agreement_of_classes(logs, labels, 1)) != known
    assert np.isnan(agreement_of_numbers(logs[:, :1], labels[:, None].astype(np.float64))) != known


GOALS = torch.randn(12, 2, generator=torch.Generator().manual_seed(1))
BY_HAND = {
    "square": lambda x: (x - GOALS).square().mean(),
    "the other way round": lambda x: ((GOALS - x) ** 2).mean(),
    "absolute": lambda x: (x - GOALS).abs().mean(),
    "smooth": lambda x: F.smooth_l1_loss(x, GOALS),
}


@pytest.mark.parametrize("last", [nn.Identity(), nn.Tanh()], ids=["linear", "tanh"])
@pytest.mark.parametrize("name", BY_HAND)
def test_targets_are_known_where_the_error_is_written_out(watch, name, last):
    model = nn.Sequential(mlp(6, 10, 2), last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model) as w:
        output = model(batches(6, 12)(0))
        BY_HAND[name](output).backward()
        optimizer.step()
    expected = agreement_of_numbers(output.detach().double().numpy(), GOALS.double().numpy())
    assert w.run.scalars("output_agreement")[0] == pytest.approx(expected, rel=1e-3)
    assert w.run.scalars("target_std")[0] == pytest.approx(GOALS.double().numpy().std(), rel=1e-4)
    assert w.run.scalars("prediction_mean")[0] == pytest.approx(output.mean().item(), rel=1e-3, abs=1e-5)


def test_returns_of_a_policy_are_not_judged(watch):
    model = mlp(6, 10, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model) as w:
        output = model(batches(6, 12)(0))
        chosen = output[:, :2].log_softmax(1)[:, 0]
        (0.5 * F.mse_loss(output[:, 2:], GOALS) - (chosen * GOALS[:, 0]).mean()).backward()
        optimizer.step()
    assert "loss_kind" in w.run.scalar_names
    assert "output_agreement" not in w.run.scalar_names


def test_of_a_broadcast_error_nothing_is_made_again(watch):
    model = mlp(6, 10, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model) as w:
        (model(batches(6, 12)(0)) - GOALS[:, 0]).square().mean().backward()
        optimizer.step()
    assert "target_std" not in w.run.scalar_names


@pytest.mark.parametrize(("columns", "known"), [(1, True), (3, False)])
def test_a_column_alone_is_all_that_was_made(watch, columns, known):
    model = mlp(6, 10, columns)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model) as w:
        (model(batches(6, 12)(0))[:, 0] - GOALS[:, 0]).square().mean().backward()
        optimizer.step()
    assert ("target_std" in w.run.scalar_names) == known
    if known:
        assert w.run.scalars("target_std")[0] == pytest.approx(GOALS[:, 0].double().numpy().std(), rel=1e-4)
