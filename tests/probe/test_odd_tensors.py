"""Tensors that no statistic is made for cost no more than themselves: everything else is measured."""

import pytest
import torch
from torch import nn

import undertow


class WithOdd(nn.Module):
    def __init__(self, odd: torch.Tensor) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.odd = nn.Parameter(odd, requires_grad=odd.is_complex())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.body(x)
        return out * self.odd.abs().mean() if self.odd.is_complex() else out


def train(model: nn.Module, folder, steps: int = 12, **settings):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    with undertow.watch(model, run_dir=folder, every=1, quiet=True, **settings):
        for _ in range(steps):
            loss = model(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return undertow.open_run(folder)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool, torch.uint8])
def test_a_frozen_tensor_of_whole_numbers(tmp_path, dtype):
    run = train(WithOdd(torch.ones(6, 4).to(dtype)), tmp_path / "run")
    assert run.status == "finished"
    assert len(run.steps) == 12
    assert (run.series("gradient_norm", "body.weight") > 0).all()


def test_a_complex_parameter(tmp_path):
    run = train(WithOdd(torch.randn(6, 4, dtype=torch.complex64)), tmp_path / "run")
    assert run.status == "finished"
    assert len(run.steps) == 12
    assert (run.series("gradient_norm", "body.weight") > 0).all()


def test_a_module_and_an_optimizer_that_were_never_initialised(tmp_path):
    class Halfway(nn.Module):
        def __init__(self) -> None:
            pass

    class NoGroups(torch.optim.Optimizer):
        def __init__(self) -> None:
            pass

    alive = [Halfway(), NoGroups()]
    run = train(nn.Linear(4, 1), tmp_path / "run")
    assert alive
    assert run.status == "finished"
    assert len(run.steps) == 12


@pytest.mark.parametrize("units", [2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])  # read where it lies, and copied
def test_a_parameter_whose_data_gets_another_size(tmp_path, units, dtype):
    """Networks that grow or are pruned while they train: every step is measured, also the first one thereafter."""
    model = nn.Linear(4, 4, dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with undertow.watch(model, run_dir=tmp_path / "run", every=1, quiet=True):
        for step in range(12):
            if step == 6:
                model.bias.data, model.weight.data = torch.zeros(units, dtype=dtype), torch.randn(units, 4, dtype=dtype)
            loss = model(torch.randn(8, 4, dtype=dtype)).abs().square().mean()
            loss.backward()
            optimizer.step()
            if step == 6:
                assert model.weight.grad is not None
                norm = torch.view_as_real(model.weight.grad.to(torch.complex64)).norm().item()
            optimizer.zero_grad()
            del loss
    run = undertow.open_run(tmp_path / "run")
    assert (run.status, run.steps.tolist()) == ("finished", list(range(12)))
    norms = run.series("gradient_norm", "weight")
    assert (norms > 0).all()
    assert norms[6] == pytest.approx(norm, rel=1e-5)
    assert run.layers["weight"].shape == (units, 4)
