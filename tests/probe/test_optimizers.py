"""Optimizers and loops of every kind: in turn, with closures, inside of backward, without a module."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.probe.training import Book, batches, classes, mlp
from torch import nn


def gradient_norm(parameter: torch.Tensor) -> float:
    assert parameter.grad is not None
    return float(parameter.grad.norm())


def test_alternating_optimizers_make_a_step_each(watch):
    torch.manual_seed(1)
    generator, critic = mlp(4, 16, 6), mlp(6, 16, 1)
    g_step = torch.optim.Adam(generator.parameters(), lr=1e-3)
    c_step = torch.optim.Adam(critic.parameters(), lr=2e-3)
    truth: dict[str, list[float]] = {"generator.0.weight": [], "critic.0.weight": []}
    losses: list[float] = []
    score = nn.functional.binary_cross_entropy_with_logits
    with watch(None) as w:
        for step in range(5):
            noise = batches(4)(step)
            c_step.zero_grad()
            real = score(critic(batches(6, seed=3)(step)), torch.ones(16, 1))
            fake = score(critic(generator(noise).detach()), torch.zeros(16, 1))
            (real + fake).backward()
            losses.append(float((real + fake).detach()))
            truth["critic.0.weight"] += [gradient_norm(critic[0].get_parameter("weight")), np.nan]
            c_step.step()
            g_step.zero_grad()
            loss = score(critic(generator(noise)), torch.ones(16, 1))
            loss.backward()
            losses.append(float(loss.detach()))
            truth["generator.0.weight"] += [np.nan, gradient_norm(generator[0].get_parameter("weight"))]
            g_step.step()
    run = w.run
    assert run.steps.tolist() == list(range(10))
    np.testing.assert_allclose(run.scalars("loss"), losses, rtol=1e-6)
    for name, norms in truth.items():
        np.testing.assert_allclose(run.series("gradient_norm", name), norms, rtol=1e-5)
    assert np.nanmax(run.matrix("gradient_carried")) == 0
    np.testing.assert_allclose(run.scalars("lr"), [2e-3, 1e-3] * 5)
    assert not [f for f in w.findings if f.severity.is_alarm]


def test_optimizers_without_a_backward_between_share_a_step(watch):
    model = mlp(8, 16, 4)
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.Adam(model[2].parameters(), lr=0.01)
    book = Book()
    with watch(model) as w:
        for step in range(4):
            model.zero_grad()
            classes(4)(model(batches(8)(step)), step).backward()
            book.note_gradients(model.named_parameters())
            book.note_before(model.named_parameters())
            first.step()
            second.step()
            book.note_after(model.named_parameters())
    run = w.run
    assert run.steps.tolist() == list(range(4))
    for name, _ in model.named_parameters():
        np.testing.assert_allclose(run.series("gradient_norm", name), book.norms(name), rtol=1e-6)
        np.testing.assert_allclose(run.series("update_ratio", name), book.update_ratios(name), rtol=1e-3)
    assert run.series("gradient_optimizer", "2.weight").tolist() == [1.0] * 4


def test_lbfgs_closure(watch):
    torch.manual_seed(3)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)
    x, y = batches(6)(0), torch.randn(16, 1)
    firsts: list[tuple[float, float]] = []
    with watch(model) as w:
        for _ in range(4):
            calls: list[tuple[float, float]] = []

            def closure(calls: list[tuple[float, float]] = calls) -> torch.Tensor:
                optimizer.zero_grad()
                loss = (model(x) - y).square().mean()
                loss.backward()
                calls.append((float(loss.detach()), gradient_norm(model.weight)))
                return loss

            optimizer.step(closure)
            firsts.append(calls[0])
            assert len(calls) > 1
    run = w.run
    assert run.steps.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(run.scalars("loss"), [loss for loss, _ in firsts], rtol=1e-6)
    np.testing.assert_allclose(run.series("gradient_norm", "weight"), [norm for _, norm in firsts], rtol=1e-5)
    assert not [f for f in w.findings if f.severity.is_alarm]


@pytest.mark.parametrize("by_name", [False, True])
def test_a_closure_may_clip_what_its_backward_pass_gave(watch, by_name):
    """As in loops where the optimizer is handed the whole step."""
    torch.manual_seed(3)
    model = nn.Linear(6, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = batches(6)(0), torch.randn(16, 1)
    norms: list[float] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.01)))
        return loss

    with watch(model) as w:
        for _ in range(4):
            loss = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
            assert loss is not None
            assert float(loss.detach()) > 0
    run = w.run
    np.testing.assert_allclose(run.series("gradient_norm", "weight"), norms, rtol=1e-5)
    np.testing.assert_allclose(run.series("stepped_gradient_norm", "weight"), 0.01, rtol=1e-3)
    np.testing.assert_allclose(run.scalars("clip_coefficient"), 0.01 / np.array(norms), rtol=1e-3)


def test_functional_loop_without_a_module(watch):
    weights = {"w": torch.randn(4, 8, requires_grad=True), "b": torch.zeros(4, requires_grad=True)}
    optimizer = torch.optim.Adam(
        [{"params": [weights["w"]], "name": "matrix"}, {"params": [weights["b"]], "lr": 0.1}], lr=0.01
    )

    def loss_of(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return (x @ parameters["w"].T + parameters["b"]).square().mean()

    norms = []
    with watch(None) as w:
        for step in range(4):
            plain = {name: value.detach() for name, value in weights.items()}
            gradients = torch.func.grad(loss_of)(plain, batches(8)(step))
            for name, value in weights.items():
                value.grad = gradients[name]
            norms.append(float(gradients["w"].norm()))
            optimizer.step()
    run = w.run
    assert list(run.layers) == ["matrix.param0", "group1.param0"]
    assert run.steps.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(run.series("gradient_norm", "matrix.param0"), norms, rtol=1e-6)


def test_autograd_grad_loop(watch):
    model = mlp(8, 16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, norms = [], []
    with watch(model) as w:
        for step in range(4):
            loss = classes(4)(model(batches(8)(step)), step)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), gradients):
                parameter.grad = gradient
            losses.append(float(loss.detach()))
            norms.append(float(gradients[0].norm()))
            optimizer.step()
    run = w.run
    np.testing.assert_allclose(run.scalars("loss"), losses, rtol=1e-6)
    np.testing.assert_allclose(run.series("gradient_norm", "0.weight"), norms, rtol=1e-6)
    assert [x for x in run.layers.in_execution_order() if x.endswith("weight")] == ["0.weight", "2.weight"]


def test_optimizer_in_backward(watch):
    model = mlp(8, 16, 4)
    optimizers: dict[torch.Tensor, torch.optim.Optimizer]
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    norms: list[float] = []

    def step_now(parameter: torch.Tensor) -> None:
        if parameter is model[0].weight:
            norms.append(gradient_norm(parameter))
        optimizers[parameter].step()
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step_now)
    with watch(model) as w:
        for step in range(4):
            classes(4)(model(batches(8)(step)), step).backward()
    run = w.run
    assert run.steps.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(run.series("gradient_norm", "0.weight"), norms, rtol=1e-6)
    assert (run.series("gradient_state", "2.bias") == 0).all()
    assert (run.series("update_norm", "2.weight") > 0).all()
    assert not [f for f in w.findings if f.severity.is_alarm]
