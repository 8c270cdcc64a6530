"""Every bit that a training can leave behind is in its fingerprint."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.unchanged.fingerprint import Fingerprint


def trained() -> tuple[nn.Module, torch.optim.Optimizer, list[torch.Tensor]]:
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2, dtype=torch.float32))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    return model, optimizer, [loss.detach()]


def hashes(*values: object) -> dict[str, str]:
    fingerprint = Fingerprint()
    fingerprint.add("returned", values)
    fingerprint.add_surroundings()
    return fingerprint.hashes()


def nudge(tensor: torch.Tensor) -> None:
    """By the least that a float can change."""
    with torch.no_grad():
        tensor.flatten()[0].copy_(torch.nextafter(tensor.flatten()[0], torch.tensor(torch.inf)))


CHANGES: dict[str, Callable[[nn.Module, torch.optim.Optimizer, list[torch.Tensor]], object]] = {
    "weights": lambda model, optimizer, losses: nudge(model[0].weight),
    "gradients": lambda model, optimizer, losses: nudge(model[0].weight.grad),
    "buffers": lambda model, optimizer, losses: nudge(model[1].running_mean),
    "optimizer": lambda model, optimizer, losses: nudge(optimizer.state[model[0].weight]["exp_avg"]),
    "returned": lambda model, optimizer, losses: nudge(losses[0]),
    "modules": lambda model, optimizer, losses: model[1].eval(),
    "torch random": lambda model, optimizer, losses: torch.rand(()),
    "numpy random": lambda model, optimizer, losses: np.random.rand(),
    "python random": lambda model, optimizer, losses: random.random(),
}


@pytest.mark.parametrize("part", CHANGES)
def test_one_bit_shows_in_its_part_alone(part: str) -> None:
    before = hashes(*trained())
    left = trained()
    assert hashes(*left) == before
    CHANGES[part](*left)
    after = hashes(*left)
    assert {name for name in before if before[name] != after[name]} == {part}


def test_settings_of_torch_show() -> None:
    before = hashes()
    torch.use_deterministic_algorithms(True)
    try:
        assert hashes()["settings"] != before["settings"]
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3).bfloat16(), torch.randn(2, dtype=torch.complex64), torch.eye(3).to_sparse(), torch.zeros(0, 2),
        torch.tensor(1.0), torch.tensor([True]), torch.empty(2, device="meta"),
    ],
)  # fmt: skip
def test_tensors_of_every_kind_have_one(tensor: torch.Tensor) -> None:
    assert hashes(tensor) == hashes(tensor.clone())
