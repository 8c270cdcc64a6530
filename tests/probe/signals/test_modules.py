"""Modes, settings, the spread between samples and the scale of the data, against values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.probe.training import batches, classes, mlp, train
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8, eps=1e-3, momentum=0.2)
        self.drop, self.layer_norm, self.head = nn.Dropout(0.3), nn.LayerNorm(8, eps=1e-6), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer_norm(self.drop(self.norm(self.first(x)).relu())))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(x), torch.arange(len(x)) % 4).backward()
    optimizer.step()


def test_a_dropout_without_a_module(watch):
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.drop, self.head = nn.Linear(6, 32), nn.Dropout(0.3), nn.Linear(32, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.drop(F.dropout(self.first(x), 0.75, self.training)) * 2.0)

    model = Dropped()
    with watch(model, activations=True) as w:
        step(model, torch.optim.SGD(model.parameters(), lr=0.05), batches(6, 64)(0))
    np.testing.assert_allclose(w.run.series("dropout_rate", "first"), 0.75, rtol=1e-5)
    np.testing.assert_allclose(w.run.series("dropout_rate", "drop"), 0.3)
    assert np.isnan(w.run.series("dropout_rate", "head")).all()


def test_settings_and_modes(watch):
    model = Normalised()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watch(model, activations=True) as w:
        step(model, optimizer, batches(6, 16)(0))
        model.norm.eval()
        step(model, optimizer, batches(6, 12)(1))
        model.eval()
        step(model, optimizer, batches(6, 12)(2))
    run = w.run
    assert run.series("activation_training", "norm").tolist() == [1.0, 0.0, 0.0]
    assert run.series("activation_training", "drop").tolist() == [1.0, 1.0, 0.0]
    assert run.series("activation_training", "first").tolist() == [1.0, 1.0, 0.0]
    np.testing.assert_array_equal(run.series("norm_values", "norm"), [16.0, np.nan, np.nan])
    np.testing.assert_allclose(run.series("norm_eps", "norm"), 1e-3)
    np.testing.assert_allclose(run.series("norm_eps", "layer_norm"), 1e-6)
    np.testing.assert_allclose(run.series("norm_momentum", "norm"), 0.2)
    np.testing.assert_allclose(run.series("dropout_rate", "drop"), 0.3)
    # As they are before the forward pass: a new one begins at zero.
    np.testing.assert_array_equal(run.series("norm_average", "norm"), [0.0, np.nan, np.nan])
    for quantity in ("norm_values", "norm_eps", "norm_momentum", "dropout_rate"):
        assert np.isnan(run.series(quantity, "first")).all()
    assert np.isnan(run.series("norm_momentum", "layer_norm")).all()
    features = model.layer_norm.normalized_shape[0]
    np.testing.assert_array_equal(run.series("norm_values", "layer_norm"), [features] * 3)


def test_values_of_a_convolutions_norm(watch):
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(5 * 16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watch(model, activations=True) as w:
        step(model, optimizer, torch.randn(2, 3, 6, 6))
    assert w.run.series("norm_values", "1").tolist() == [2 * 4 * 4]


def test_validation_with_gradients_is_not_taken_for_training(watch):
    model = Normalised()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watch(model, activations=True) as w:
        for number in range(3):
            model.eval()
            model(batches(6, 12)(100 + number))
            model.train()
            step(model, optimizer, batches(6, 12)(number))
    assert w.run.series("activation_training", "norm").tolist() == [1.0] * 3


def test_modules_without_gradient_have_no_mode(watch):
    teacher, model = Normalised().eval(), mlp(6, 8, 4)
    both = nn.ModuleDict({"teacher": teacher, "student": model})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = batches(6, 12)(0)
    with watch(both, activations=True) as w:
        with torch.no_grad():
            target = teacher(x)
        F.mse_loss(model(x), target).backward()
        optimizer.step()
    assert np.isnan(w.run.series("activation_training", "teacher.norm")).all()
    assert w.run.series("activation_training", "student.0").tolist() == [1.0]


def test_a_change_of_mode_is_seen_in_the_two_steps_after(watch):
    """Activations are hardly ever sampled here; the change of mode asks for them."""
    model = Normalised()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watch(model, activations=1000) as w:
        for number in range(12):
            if number == 8:
                model.eval()
            step(model, optimizer, batches(6, 12)(number))
    training = w.run.series("activation_training", "norm")
    assert np.flatnonzero(~np.isnan(training)).tolist() == [0, 9, 10]
    assert (training[0], training[9], training[10]) == (1.0, 0.0, 0.0)


def test_modes_that_alternate_do_not_ask_for_more(watch):
    model = Normalised()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watch(model, activations=1000) as w:
        for number in range(12):
            model.norm.train(number % 2 == 0)
            step(model, optimizer, batches(6, 12)(number))
    assert np.flatnonzero(~np.isnan(w.run.series("activation_calls", "norm"))).tolist() == [0, 2, 4]


def spread_of(values: torch.Tensor) -> float:
    flat = values.double().flatten(1).numpy()
    return flat.var(axis=0).mean() / flat.var()


def test_spread_between_samples(watch):
    model = mlp(6, 8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watch(model, activations=True) as w:
        expected = {}
        for number in range(3):
            x = batches(6, 16)(number)
            if number == 1:
                x = x[:1].expand(16, 6)  # all samples alike
            hidden = model[0](x).detach()
            w._recorder._forward.take()
            expected[number] = (spread_of(hidden), spread_of(model[2](hidden.relu()).detach()))
            w._recorder._forward.take()
            step(model, optimizer, x)
    for place, name in enumerate(("0", "2")):
        measured = w.run.series("activation_sample_spread", name)
        np.testing.assert_allclose(measured, [expected[n][place] for n in range(3)], rtol=1e-4, atol=1e-9)
        assert measured[1] < 1e-9 < measured[0]


def test_spread_of_one_sample_is_unknown(watch):
    model = mlp(6, 8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watch(model, activations=True) as w:
        step(model, optimizer, batches(6, 1)(0))
    assert np.isnan(w.run.series("activation_sample_spread", "0")).all()


CONVOLUTION = nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, 4))


@pytest.mark.parametrize("body", [mlp(6, 8, 4), CONVOLUTION], ids=["linear", "convolution"])
def test_scale_of_the_data(watch, body):
    optimizer = torch.optim.SGD(body.parameters(), lr=1e-6)
    data = [batches(6, 16)(number) * 40 + 1000 for number in range(2)]
    with watch(body, activations=True) as w:
        for x in data:
            step(body, optimizer, x)
    np.testing.assert_allclose(w.run.scalars("input_mean"), [float(x.double().mean()) for x in data])
    np.testing.assert_allclose(w.run.scalars("input_std"), [float(x.double().std(correction=0)) for x in data])
    np.testing.assert_allclose(w.run.scalars("input_max_abs"), [float(x.abs().max()) for x in data])


def test_scale_after_preparation_inside_the_model(watch):
    class Prepared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(6, 8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body((x - 1000) / 40)

    model = Prepared()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    raw = batches(6, 16)(0)
    with watch(model, activations=True) as w:
        step(model, optimizer, raw * 40 + 1000)
    assert w.run.scalars("input_std")[0] == pytest.approx(float(raw.std(correction=0)), rel=1e-4)


def test_tokens_have_no_scale(watch):
    model = nn.Sequential(nn.Embedding(20, 6), nn.Flatten(), nn.Linear(18, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watch(model, activations=True) as w:
        step(model, optimizer, torch.randint(0, 20, (8, 3)))
    assert "input_std" not in w.run.scalar_names


def test_compiled_models_are_left_alone(watch):
    model = mlp(6, 8, 4)
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watch(compiled, activations=True) as w:
        train(compiled, optimizer, 3, batches(6), classes(4))
    assert w.run.status == "finished"
    assert "input_std" not in w.run.scalar_names


def test_functional_calls_are_left_alone(watch):
    """The data that `torch.func` passes to a module has no memory of its own to look at."""
    model = mlp(6, 8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    parameters = dict(model.named_parameters())

    def loss_of(values: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.func.functional_call(model, values, x[None]), y[None])

    x, y = batches(6, 5)(0), torch.tensor([0, 1, 2, 3, 0])
    with watch(model, activations=True) as w:
        each = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))(parameters, x, y)
        for name, parameter in parameters.items():
            parameter.grad = each[name].mean(0)
        optimizer.step()
    assert w.run.status == "finished"
    assert "input_std" not in w.run.scalar_names


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("keep", [True, False])
def test_random_numbers_that_are_drawn_again_in_the_backward_pass(watch, keep, reentrant):
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.drop = nn.Linear(8, 8), nn.Dropout(0.3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.dropout(self.drop(self.drop(self.inner(x)).relu()), 0.2)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.outside, self.head = nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 4)
            self.blocks = nn.ModuleList([Block(), Block()])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.outside(self.first(x))
            for block in self.blocks:
                h = checkpoint(block, h, use_reentrant=reentrant, preserve_rng_state=keep)
            return self.head(h)

    model = Model()
    with watch(model, activations=True) as w:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for place in range(3):
            step(model, optimizer, batches(6, 16)(place))
    apart = float(not keep)  # which modules run again is known from the second step on
    for path in ("blocks.0", "blocks.0.drop", "blocks.1.drop"):
        np.testing.assert_array_equal(w.run.series("recomputed_apart", path), [np.nan, apart, apart])
    for path in ("outside", "blocks.0.inner", "head"):
        assert np.isnan(w.run.series("recomputed_apart", path)).all()


def test_samples_of_a_normalisation(watch):
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watch(model, activations=True) as w:
        for rows in (5, 2):
            step(model, optimizer, torch.randn(rows, 1, 6, 6))
    assert w.run.series("norm_samples", "1").tolist() == [5.0, 2.0]
    assert w.run.series("norm_values", "1").tolist() == [80.0, 32.0]
