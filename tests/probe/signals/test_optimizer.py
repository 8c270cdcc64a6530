"""What optimizers keep, and rows of weights, against the same numbers computed by hand from all elements."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.probe.training import batches, classes, exact, mlp
from torch import nn
from torch.nn import functional as F  # noqa: N812

NAMES = ["0.weight", "0.bias", "2.weight", "2.bias"]


def steps(model, optimizer_of, count, note=lambda step, optimizer: None, features=6):
    optimizer = optimizer_of(None)
    for step in range(count):
        optimizer = optimizer_of(optimizer)
        optimizer.zero_grad()
        classes(4)(model(batches(features)(step)), step).backward()
        optimizer.step()
        note(step, optimizer)


def test_adam(watch):
    model = mlp(6, 10, 4)
    adam = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.02)
    ratios, sizes, cosines = [], [], []

    def note(step, optimizer):
        for parameter in model.parameters():
            state, g = optimizer.state[parameter], exact(parameter.grad).ravel()
            v = exact(state["exp_avg_sq"]).ravel() / (1 - 0.95 ** (step + 1))
            m = exact(state["exp_avg"]).ravel()
            ratios.append(np.median(np.sqrt(v[v > 0])) / 1e-6)
            sizes.append(np.sqrt(np.mean(g[v > 0] ** 2 / v[v > 0])))
            cosines.append(m @ g / np.linalg.norm(m) / np.linalg.norm(g))

    with watch(model) as w:
        steps(model, lambda _: adam, 4, note)
    run = w.run
    for place, name in enumerate(NAMES):
        np.testing.assert_allclose(run.series("optimizer_rate", name), 3e-3, rtol=1e-6)
        np.testing.assert_allclose(run.series("optimizer_weight_decay", name), 0.02, rtol=1e-6)
        np.testing.assert_allclose(run.series("optimizer_momentum", name), 0.8, rtol=1e-6)
        assert run.series("optimizer_step_count", name).tolist() == [1.0, 2.0, 3.0, 4.0]
        assert run.series("optimizer_rebuilt", name).tolist() == [0.0] * 4
        np.testing.assert_allclose(run.series("optimizer_eps_ratio", name), ratios[place::4], rtol=1e-4)
        np.testing.assert_allclose(run.series("optimizer_gradient_rms", name), sizes[place::4], rtol=1e-4)
        np.testing.assert_allclose(run.series("optimizer_momentum_cosine", name), cosines[place::4], rtol=1e-4)


def test_momentum_and_groups(watch):
    model = mlp(6, 10, 4)
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.5, "weight_decay": 0.1}]
    sgd = torch.optim.SGD(groups, lr=0.01, momentum=0.9)
    cosines = []

    def note(step, optimizer):
        m, g = (exact(t).ravel() for t in (optimizer.state[model[0].weight]["momentum_buffer"], model[0].weight.grad))
        cosines.append(m @ g / np.linalg.norm(m) / np.linalg.norm(g))

    with watch(model) as w:
        steps(model, lambda _: sgd, 3, note)
    run = w.run
    np.testing.assert_allclose(run.series("optimizer_rate", "0.weight"), 0.01)
    np.testing.assert_allclose(run.series("optimizer_rate", "2.bias"), 0.5)
    np.testing.assert_allclose(run.series("optimizer_weight_decay", "2.bias"), 0.1)
    np.testing.assert_allclose(run.series("optimizer_momentum", "2.bias"), 0.9)
    np.testing.assert_allclose(run.series("optimizer_momentum_cosine", "0.weight"), cosines, rtol=1e-4)
    for name in ("optimizer_step_count", "optimizer_eps_ratio", "optimizer_gradient_rms"):
        assert np.isnan(run.series(name, "0.weight")).all()


def test_rmsprop_has_a_second_moment(watch):
    model = mlp(6, 10, 4)
    rmsprop = torch.optim.RMSprop(model.parameters(), lr=1e-3, eps=1e-3)
    expected = []
    with watch(model) as w:
        steps(
            model,
            lambda _: rmsprop,
            2,
            lambda step, o: expected.append(np.median(np.sqrt(exact(o.state[model[2].bias]["square_avg"]))) / 1e-3),
        )
    np.testing.assert_allclose(w.run.series("optimizer_eps_ratio", "2.bias"), expected, rtol=1e-4)


def test_an_optimizer_made_anew(watch):
    model = mlp(6, 10, 4)
    with watch(model) as w:
        steps(model, lambda _: torch.optim.Adam(model.parameters(), lr=1e-3), 4)
    assert w.run.series("optimizer_rebuilt", "0.weight").tolist() == [0.0, 1.0, 1.0, 1.0]
    assert w.run.series("optimizer_step_count", "0.weight").tolist() == [1.0] * 4


def test_another_training_begins_with_other_parameters(watch):
    encoder, decoder, head = mlp(6, 10), mlp(10, 6), mlp(10, 4)
    made: list[torch.optim.Optimizer] = []

    def over(*parts: nn.Module) -> torch.optim.Optimizer:
        made[:] = [torch.optim.SGD([p for part in parts for p in part.parameters()], lr=0.1)]
        return made[0]

    with watch(nn.ModuleList([encoder, decoder, head])) as w:
        for parts in ((encoder, decoder), (encoder, decoder), (encoder, head), (encoder, head), (encoder, decoder)):
            optimizer = over(*parts)
            optimizer.zero_grad()
            parts[1](parts[0](batches(6)(0))).square().mean().backward()
            optimizer.step()
            del optimizer
    assert np.nan_to_num(w.run.scalars("another_training")).tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]


def test_an_optimizer_made_anew_once(watch):
    model = mlp(6, 10, 4)
    made = []

    def optimizer_of(_):
        if len(made) in (0, 3):
            current = torch.optim.Adam(model.parameters(), lr=1e-3)
        else:
            current = made[-1]
        made.append(current)
        return current

    with watch(model) as w:
        steps(model, optimizer_of, 6)
    assert w.run.series("optimizer_rebuilt", "0.weight").tolist()[:4] == [0.0, 0.0, 1.0, 0.0]


def test_two_optimizers_in_turn_are_not_rebuilt(watch):
    model = mlp(6, 10, 4)
    parts = [torch.optim.Adam(model[place].parameters(), lr=1e-3) for place in (0, 2)]
    with watch(model) as w:
        for step in range(4):
            model.zero_grad()
            classes(4)(model(batches(6)(step)), step).backward()
            parts[step % 2].step()
    rebuilt = w.run.series("optimizer_rebuilt", "0.weight")
    np.testing.assert_array_equal(rebuilt, [0.0, np.nan, 0.0, np.nan])


def spread_of(weight: np.ndarray) -> float:
    rows = weight.reshape(len(weight), -1)
    return np.linalg.norm(rows - rows.mean(axis=0)) / np.linalg.norm(rows)


def test_spread_of_rows(watch):
    model = nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 16, 4), nn.Linear(4, 4))
    nn.init.constant_(model[4].weight, 0.3)
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model) as w:
        F.cross_entropy(model(torch.randn(6, 2, 6, 6)), torch.arange(6) % 4).backward()
        sgd.step()
    run = w.run
    for name in ("0.weight", "3.weight"):
        expected = spread_of(exact(dict(model.named_parameters())[name]))
        assert run.series("weight_row_spread", name)[0] == pytest.approx(expected, rel=1e-5)
    assert run.series("weight_row_spread", "4.weight")[0] == 0.0
    assert np.isnan(run.series("weight_row_spread", "3.bias")).all()


def test_the_units_of_a_table_are_its_columns(watch):
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3))
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model) as w:
        model(torch.arange(7)).sum().backward()
        sgd.step()
    expected = spread_of(exact(model[0].weight).T)
    assert w.run.series("weight_row_spread", "0.weight")[0] == pytest.approx(expected, rel=1e-5)


def test_spread_of_many_rows_comes_from_some(watch):
    model = nn.Sequential(nn.Linear(300, 500), nn.Linear(500, 4))
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model) as w:
        model(torch.randn(3, 300)).sum().backward()
        sgd.step()
    expected = spread_of(exact(model[0].weight))
    assert w.run.series("weight_row_spread", "0.weight")[0] == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e200])
def test_weights_that_are_not_finite_have_no_spread_and_no_warning(watch, value):
    model = nn.Linear(4, 3, dtype=torch.float64)
    model.weight.data[1, 2] = value
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model) as w:
        model(torch.ones(3, 4, dtype=torch.float64)).sum().backward()
        sgd.step()
    assert np.isnan(w.run.series("weight_row_spread", "weight")).all()


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd with decay": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam with decay": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("every", [1, 3])
def test_rows_never_used(watch, name, every):
    model = nn.Sequential(nn.Embedding(40, 6), nn.Flatten(), nn.Linear(12, 4))
    optimizer = OPTIMIZERS[name](model.parameters())
    seen: set[int] = set()
    expected = []
    with watch(model, every=every) as w:
        for step in range(7):
            tokens = torch.randint(0, 10 + 3 * step, (8, 2), generator=torch.Generator().manual_seed(step))
            seen |= set(tokens.flatten().tolist())
            expected.append(1 - len(seen) / 40)
            optimizer.zero_grad()
            F.cross_entropy(model(tokens), torch.arange(8) % 4).backward()
            optimizer.step()
    measured = w.run.series("weight_rows_unused", "0.weight")
    looked = np.flatnonzero(~np.isnan(measured))
    assert len(looked) >= 3
    assert looked[-1] >= 3
    np.testing.assert_allclose(measured[looked], np.array(expected)[looked], rtol=1e-6)
    assert np.isnan(w.run.series("weight_rows_unused", "2.weight")).all()


def test_rows_of_sparse_gradients(watch):
    model = nn.Sequential(nn.Embedding(40, 6, sparse=True), nn.Flatten(), nn.Linear(12, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as w:
        F.cross_entropy(model(torch.tensor([[0, 1], [1, 2]])), torch.tensor([0, 1])).backward()
        optimizer.step()
    assert w.run.series("weight_rows_unused", "0.weight").tolist() == [pytest.approx(37 / 40)]


def test_an_empty_group_and_the_rate_before_a_schedule(watch):
    model = mlp(6, 10, 4)
    parameters = model[0].parameters()
    list(parameters)  # reads it to its end
    adam = torch.optim.Adam([{"params": parameters}, {"params": model[2].parameters()}], lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: 0.5)
    with watch(model) as w:
        steps(model, lambda _: adam, 2, lambda step, optimizer: schedule.step())
    assert w.run.scalars("optimizer_empty_groups").tolist() == [1.0, 1.0]
    np.testing.assert_allclose(w.run.scalars("initial_lr"), [0.01, 0.01])
    np.testing.assert_allclose(w.run.scalars("lr"), [0.005, 0.005])
    np.testing.assert_allclose(w.run.scalars("optimizer_memory_ratio"), [0.01, 0.01])


class Hiding(nn.Module):
    """A model with layers where `parameters()` does not look."""

    def __init__(self, hidden: nn.Module) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 4)
        self.rest = [hidden]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.rest[0](self.first(x)))


def unregistered(watch, model, parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    with watch(None) as w:
        steps(model, lambda _: optimizer, 3)
    return w.run.scalars("unregistered_parameters").tolist()[1:]


def test_layers_in_a_list_are_unregistered(watch):
    model = Hiding(nn.Linear(8, 8))
    assert unregistered(watch, model, model.parameters()) == [2.0, 2.0]


def test_hidden_layers_that_are_frozen_or_held_are_fine(watch):
    frozen = Hiding(nn.Linear(8, 8).requires_grad_(False))
    assert unregistered(watch, frozen, frozen.parameters()) == [0.0, 0.0]
    held = Hiding(nn.Linear(8, 8))
    assert unregistered(watch, held, [*held.parameters(), *held.rest[0].parameters()]) == [0.0, 0.0]


def test_a_model_beside_the_watched_one_is_left_alone(watch):
    model, judge = mlp(6, 10, 4), nn.Linear(4, 4)
    assert unregistered(watch, nn.Sequential(model, judge), model.parameters()) == [0.0, 0.0]


def test_an_optimizer_of_another_model(watch):
    model = mlp(6, 10, 4)
    assert unregistered(watch, model, mlp(6, 10, 4).parameters()) == [4.0, 4.0]


class Loose(nn.Module):
    """A model with a tensor that is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.randn(6, 8, requires_grad=True)
        self.last = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x @ self.table)


def test_a_tensor_that_is_no_parameter_is_unregistered_unless_somebody_trains_it(watch):
    model = Loose()
    assert unregistered(watch, model, model.parameters()) == [1.0, 1.0]
    held = Loose()
    assert unregistered(watch, held, [*held.parameters(), held.table]) == [0.0, 0.0]
    by_hand = Loose()
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    with watch(None) as w:
        for step in range(4):
            optimizer.zero_grad()
            classes(4)(by_hand(batches(6)(step)), step).backward()
            by_hand.table.data -= 0.1 * by_hand.table.grad
            optimizer.step()
    assert w.run.scalars("unregistered_parameters").tolist()[1:] == [0.0, 0.0, 0.0]


def test_two_optimizers_of_the_same_weights_in_turn_are_new_once(watch):
    model = mlp(6, 10, 4)
    parts = [torch.optim.Adam(model.parameters(), lr=1e-3), torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)]
    with watch(model) as w:
        for step in range(6):
            model.zero_grad()
            classes(4)(model(batches(6)(step)), step).backward()
            parts[step % 2].step()
    assert np.nan_to_num(w.run.scalars("optimizer_made_anew")).tolist() == [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]


class Centres(nn.Module):
    """A loss with parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.unsqueeze(1) - self.centres).square().sum(-1).min(1).values.mean()


@pytest.mark.parametrize(("given", "strange"), [(False, 1.0), (True, 0.0)])
def test_a_loss_with_parameters_that_no_optimizer_got(watch, given: bool, strange: float):
    model, criterion = mlp(6, 10, 4), Centres()
    optimizer = torch.optim.SGD([*model.parameters(), *(criterion.parameters() if given else ())], lr=0.1)
    with watch(None) as w:
        for _ in range(3):
            optimizer.zero_grad()
            criterion(model(torch.randn(8, 6))).backward()
            optimizer.step()
    assert w.run.scalars("unregistered_parameters").tolist()[1:] == [strange, strange]
