"""A plain loop: every recorded number against the loop's own float64 book."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from tests.probe.training import Book, batches, classes, mlp, train
from torch import nn

NAMES = ["0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"]


@pytest.fixture
def trained(watch):
    model = mlp(20, 40, 30, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with watch(model) as w:
        book = train(model, optimizer, 12, batches(20), classes(5))
    return w.run, book


def test_steps_layers_and_loss(trained):
    run, book = trained
    assert run.steps.tolist() == list(range(12))
    assert [layer for layer in run.layers if not layer.is_module] == NAMES
    np.testing.assert_allclose(run.scalars("loss"), book.losses, rtol=1e-6)
    np.testing.assert_allclose(run.scalars("lr"), 0.1)
    assert (run.scalars("step_time") > 0).all()
    assert run.scalars("backward_count").tolist() == [1.0] * 12
    np.testing.assert_allclose(run.scalars("clip_coefficient"), 1.0)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_statistics(trained, name):
    run, book = trained
    values = [g[name].ravel() for g in book.gradients]
    expected = {
        "norm": [np.linalg.norm(v) for v in values],
        "rms": [np.sqrt(np.mean(v**2)) for v in values],
        "mean": [v.mean() for v in values],
        "mean_abs": [np.abs(v).mean() for v in values],
        "std": [v.std() for v in values],
        "min": [v.min() for v in values],
        "max": [v.max() for v in values],
        "max_abs": [np.abs(v).max() for v in values],
        "skewness": [stats.skew(v) for v in values],
        "kurtosis": [stats.kurtosis(v) for v in values],
        "zero_fraction": [np.mean(v == 0) for v in values],
        "nonfinite_count": [0] * len(values),
    }
    for statistic, truth in expected.items():
        measured = run.series(f"gradient_{statistic}", name)
        np.testing.assert_allclose(measured, truth, rtol=2e-5, atol=1e-7, err_msg=statistic)


@pytest.mark.parametrize("name", NAMES)
def test_directions_and_updates(trained, name):
    run, book = trained
    # Small tensors have exact sketches; the largest here has 1,200 elements in 1,024 buckets.
    np.testing.assert_allclose(run.series("gradient_cosine", name), book.cosines(name), atol=0.1)
    np.testing.assert_allclose(run.series("update_ratio", name), book.update_ratios(name), rtol=0.1)
    truth = [np.linalg.norm(a[name]) for a in book.after]
    np.testing.assert_allclose(run.series("weight_norm", name), truth, rtol=1e-6)
    drift = np.linalg.norm(book.after[-1][name] - book.before[0][name]) / np.linalg.norm(book.before[0][name])
    np.testing.assert_allclose(run.series("weight_drift", name)[-1], drift, rtol=0.1)
    descent = run.series("update_gradient_cosine", name)
    g, change = book.gradients[0][name].ravel(), (book.after[0][name] - book.before[0][name]).ravel()
    expected = -g @ change / np.linalg.norm(g) / np.linalg.norm(change)
    np.testing.assert_allclose(descent[0], expected, atol=0.05)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_is_seen(watch, set_to_none):
    model = mlp(6, 8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as w:
        book = Book()
        for step in range(6):
            optimizer.zero_grad(set_to_none=set_to_none)
            classes(3)(model(batches(6)(step)), step).backward()
            book.note_gradients(model.named_parameters())
            optimizer.step()
    np.testing.assert_allclose(w.run.series("gradient_norm", "0.weight"), book.norms("0.weight"), rtol=1e-6)
    assert np.nanmax(w.run.matrix("gradient_carried")) == 0
    assert w.findings == []


def test_missing_zero_grad_is_seen(watch):
    model = mlp(6, 8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model) as w:
        for step in range(8):
            classes(3)(model(batches(6)(step)), step).backward()
            optimizer.step()
    carried = w.run.series("gradient_carried", "0.weight")
    assert carried[0] == 0
    assert (carried[1:] == 1).all()
    assert [f.code for f in w.findings if f.severity.is_alarm] == ["GRD007"]


@pytest.mark.parametrize("in_place", [False, True])
def test_weights_kept_in_another_precision_are_no_fault(watch, in_place):
    model = mlp(6, 8, 3).bfloat16()
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.Adam(masters, lr=1e-3)
    for master in masters:
        master.grad = torch.zeros_like(master)
    with watch() as w:
        for step in range(12):
            model.zero_grad()
            classes(3)(model(batches(6)(step).bfloat16()).float(), step).backward()
            for master, p in zip(masters, model.parameters(), strict=True):
                assert p.grad is not None
                assert master.grad is not None
                if in_place:
                    master.grad.copy_(p.grad)
                else:
                    master.grad = p.grad.float()
            optimizer.step()
            with torch.no_grad():
                for master, p in zip(masters, model.parameters(), strict=True):
                    p.copy_(master)
    assert np.nanmax(w.run.matrix("gradient_carried")) == 0
    assert [f.code for f in w.findings if f.severity.is_alarm] == []


def test_gradient_edited_through_data_is_the_stepped_one(watch):
    model = mlp(6, 8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def halve(step: int) -> None:
        for parameter in model.parameters():
            parameter.grad.data.mul_(0.5)

    with watch(model) as w:
        book = train(model, optimizer, 4, batches(6), classes(3), between=halve)
    np.testing.assert_allclose(w.run.series("gradient_norm", "0.weight"), book.norms("0.weight"), rtol=1e-6)
    np.testing.assert_allclose(w.run.series("stepped_gradient_norm", "0.weight"), book.norms("0.weight") / 2, rtol=1e-6)
    np.testing.assert_allclose(w.run.scalars("clip_coefficient"), 0.5, rtol=1e-6)


def test_weights_edited_between_steps_do_not_count_as_updates(watch):
    model = nn.Linear(10, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watch(model) as w:
        book = Book()
        for step in range(5):
            optimizer.zero_grad()
            model(batches(10)(step)).square().mean().backward()
            book.note_before(model.named_parameters())
            optimizer.step()
            book.note_after(model.named_parameters())
            model.weight.data.clamp_(-0.05, 0.05)
    np.testing.assert_allclose(w.run.series("update_ratio", "weight"), book.update_ratios("weight"), rtol=0.1)


def test_logged_scalars(watch):
    model = mlp(6, 8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as w:
        for step in range(4):
            optimizer.zero_grad()
            classes(3)(model(batches(6)(step)), step).backward()
            optimizer.step()
            if step % 2:
                w.log(val_loss=step * 1.5, accuracy=torch.tensor(0.25))
    np.testing.assert_array_equal(w.run.scalars("val_loss"), [np.nan, 1.5, np.nan, 4.5])
    np.testing.assert_array_equal(w.run.scalars("accuracy"), [np.nan, 0.25, np.nan, 0.25])


def test_a_bad_gradient_is_measured_in_its_own_step(watch):
    """Between sampled frames too: the loss is finite, only the backward pass of step 13 goes wrong."""
    model = mlp(8, 16, 16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, every=10, activations=False) as w:
        for step in range(15):
            optimizer.zero_grad()
            hidden = model[:3](batches(8)(step))
            if step == 13:
                hidden.register_hook(lambda gradient: gradient * torch.nan)
            classes(4)(model[3:](hidden), step).backward()
            optimizer.step()
    run = w.run
    measured = run.steps[~np.isnan(run.series("gradient_nonfinite_count", "0.weight"))]
    assert measured.tolist() == [0, 10, 13, 14]
    finding = w.findings[0]
    assert (finding.code, finding.first_step) == ("NUM001", 13)
    assert set(finding.layers) <= {"0.weight", "0.bias", "2.weight", "2.bias"}


class Fails(torch.autograd.Function):
    """As where memory runs out."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise MemoryError


@pytest.mark.parametrize("accumulated", [0, 1], ids=["alone", "after another pass"])
def test_a_backward_pass_that_fails_and_is_tried_again(watch, accumulated):
    model = mlp(6, 12, 3)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with watch(model, activations=1) as w:
        for step in range(6):
            sgd.zero_grad()
            losses.append(0.0)
            for _ in range(accumulated):
                loss = model(torch.randn(8, 6)).square().mean()
                losses[-1] += loss.item()
                loss.backward()
            x = torch.randn(8, 6)
            if step in (2, 3):
                with pytest.raises(MemoryError):
                    Fails.apply(model(x)).square().mean().backward()
            loss = model(x).square().mean()
            losses[-1] += loss.item()
            loss.backward()
            sgd.step()
    assert w.run.scalars("loss") == pytest.approx(losses, rel=1e-6)
    assert w.run.scalars("backward_count").tolist() == [1.0 + accumulated] * 6
    assert np.isfinite(w.run.series("activation_mean", "0")).all()
