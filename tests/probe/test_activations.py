"""What modules put out, and which of them turned a loss non-finite."""

from __future__ import annotations

import numpy as np
import torch
from tests.probe.training import batches, classes, exact, train
from torch import nn


def test_activations(watch):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    with torch.no_grad():
        model[0].bias[:5] = -100.0  # five units of sixteen are dead
        model[2].weight *= 30
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    truth: list[dict[str, np.ndarray]] = []
    gradients: list[float] = []
    with watch(model, activations=True) as w:
        for step in range(3):
            optimizer.zero_grad()
            x, outputs = batches(8)(step), {}
            h = x
            for name, module in model.named_children():
                h = module(h)
                outputs[name] = exact(h)
                if name == "2":
                    h.retain_grad()
                    kept = h
            classes(4)(h, step).backward()
            gradients.append(float(kept.grad.norm()))
            truth.append(outputs)
            optimizer.step()
    run = w.run
    for name in ("0", "1", "2", "3", "4"):
        np.testing.assert_allclose(
            run.series("activation_mean", name), [t[name].mean() for t in truth], rtol=1e-4, atol=1e-6
        )
        np.testing.assert_allclose(run.series("activation_std", name), [t[name].std() for t in truth], rtol=1e-5)
        largest = [np.abs(t[name]).max() for t in truth]
        np.testing.assert_allclose(run.series("activation_max_abs", name), largest, rtol=1e-6)
    zeros = [np.mean(t["1"] == 0) for t in truth]
    np.testing.assert_allclose(run.series("activation_zero_fraction", "1"), zeros, rtol=1e-6)
    np.testing.assert_allclose(run.series("activation_dead_fraction", "1"), 5 / 16)
    flat = [np.mean(np.abs(t["3"]) >= 0.99) for t in truth]
    np.testing.assert_allclose(run.series("activation_saturated_fraction", "3"), flat, rtol=1e-6)
    np.testing.assert_allclose(run.series("output_gradient_norm", "2"), gradients, rtol=1e-5)


def test_inplace_activations_and_validation_passes(watch):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Dropout(0.1), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, activations=True) as w:
        for _step in range(3):
            train(model, optimizer, 1, batches(8), classes(4))
            model.eval()
            with torch.no_grad():
                model(torch.full((4, 8), 1e6))
            model.train()
    assert w.run.series("activation_calls", "0").tolist() == [1.0, 1.0, 1.0]
    assert np.nanmax(w.run.series("activation_max_abs", "0")) < 1e3


def test_the_module_where_a_loss_turns_bad_is_named(watch):
    """Also when it has no parameters: the operation alone would point at the layer before it."""

    class Standardise(nn.Module):
        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return h / h.var(0).sqrt()

    model = nn.Sequential(nn.Linear(8, 16), nn.Sequential(nn.Identity(), Standardise()), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, activations=True) as w:
        for step in range(6):
            if step == 4:
                with torch.no_grad():
                    model[0].weight[0] = 0.0
            optimizer.zero_grad()
            classes(4)(model(batches(8)(step)), step).backward()
            optimizer.step()
    (origin,) = [event for event in w.run.events if event["kind"] == "first_nonfinite"]
    assert (origin["step"], origin["layer"], origin["operation"]) == (4, "1.1", "Div")
    assert w.findings[0].layers[0] == "1.1"


def test_a_cast_that_overflows_belongs_to_the_layer_it_is_made_for(watch):
    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.narrow, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = (1e7 * self.first(x)).half()
            h = nn.functional.linear(h, self.narrow.weight.half(), self.narrow.bias.half())
            return self.last(h.float())

    model = Narrow()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model) as w:
        classes(4)(model(batches(8)(0)), 0).backward()
        optimizer.step()
    (origin,) = [event for event in w.run.events if event["kind"] == "first_nonfinite"]
    assert (origin["layer"], origin["operation"]) == ("narrow", "Addmm")


def test_the_layer_before_an_operation_that_turns_bad_is_named(watch):
    """Not the layer that receives it, though its output is the first one that is seen to be bad."""

    class Directions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.first(x)
            return self.second(h / h.norm(dim=1, keepdim=True))

    model = Directions()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, activations=True) as w:
        for step in range(4):
            if step == 3:
                with torch.no_grad():
                    model.first.weight.zero_()
                    model.first.bias.zero_()
            optimizer.zero_grad()
            classes(4)(model(batches(8)(step)), step).backward()
            optimizer.step()
    (origin,) = [event for event in w.run.events if event["kind"] == "first_nonfinite"]
    assert (origin["step"], origin["layer"], origin["operation"]) == (3, "first", "Div")


def test_an_output_to_which_no_gradient_comes_back(watch, capfd):
    """What is differentiated is the slope: it does not depend on the last module's output, only on its weights."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Softplus(), nn.Conv2d(4, 1, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, activations=True) as w:
        for _step in range(3):
            images = torch.randn(4, 1, 10, 10, requires_grad=True)
            (slope,) = torch.autograd.grad(model(images).sum(), images, create_graph=True)
            optimizer.zero_grad()
            slope.square().sum().backward()
            optimizer.step()
    assert w.run.steps.tolist() == [0, 1, 2]
    assert w.run.status == "finished"
    assert "UT100" not in capfd.readouterr().err


def test_an_empty_output(watch, capfd):
    class Cached(nn.Module):
        """A cache that is empty yet, as that of an attention with compressed blocks."""

        def __init__(self) -> None:
            super().__init__()
            self.cache, self.head = nn.Identity(), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.cat([x, self.cache(x[:, :0])], dim=1))

    model = Cached()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, activations=True) as w:
        train(model, optimizer, 3, batches(8), classes(4))
    assert w.run.steps.tolist() == [0, 1, 2]
    assert w.run.status == "finished"
    assert "UT100" not in capfd.readouterr().err
