"""Memory that is given back while a training runs (offloading, gathered parameters): no kernel reads it."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import undertow
from undertow.measure.kernels import choose
from undertow.measure.kernels.tensors import FreedMemoryError, array_of, is_freed
from undertow.measure.kernels.torch_portable import TorchKernel

_BEGINNING = """
import sys, torch, undertow
from torch import nn
torch.manual_seed(0)
def give_back(tensor):
    storage = tensor.untyped_storage()
    kept, size = tensor.detach().clone(), storage.nbytes()
    storage.resize_(0)
    def bring():
        storage.resize_(size)
        tensor.detach().copy_(kept)
    return bring
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
def train(step):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
def watch():
    return undertow.watch(model, run_dir=sys.argv[1], every=1, quiet=True, activations=True)
"""
_TRAININGS = {
    "a frozen weight": """
model[0].weight.requires_grad_(False)
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
watch()
for step in range(8):
    train(step)
    bring = give_back(model[0].weight)
    optimizer.step()
    bring()
""",
    "a frozen weight in the middle of its memory": """
model[0].weight = nn.Parameter(torch.randn(1000)[100:228].view(16, 8), requires_grad=False)
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
watch()
for step in range(8):
    train(step)
    storage = model[0].weight.untyped_storage()
    kept = torch.empty(1000).untyped_storage().copy_(storage)
    storage.resize_(0)
    optimizer.step()
    storage.resize_(4000)
    storage.copy_(kept)
""",
    "a gradient": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.register_step_pre_hook(lambda *_: setattr(model[0].weight, "grad", None))
watch()
for step in range(8):
    train(step)
    model[0].weight.grad.untyped_storage().resize_(0)
    if step == 5:
        optimizer.step()
        continue
    model[0].weight.grad = None
    optimizer.step()
""",
    "outputs and inputs of modules": """
class Frees(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.scale, self.last = nn.Linear(8, 8), nn.Identity(), nn.Linear(8, 4)
    def forward(self, x):
        x = self.scale(x * 2)
        y = self.first(x)
        x.untyped_storage().resize_(0)
        return self.last(y)
def free_output(module, given, output):
    copy = output.clone()
    output.untyped_storage().resize_(0)
    return copy
model = Frees()
model.first.weight.requires_grad_(False)
model.first.register_forward_hook(free_output)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
watch()
for step in range(8):
    train(step)
    optimizer.step()
""",
    "the state of an optimizer": """
optimizer = torch.optim.Adam(model.parameters())
watch()
gone = []
def bring_all(*_):
    while gone:
        gone.pop()()
optimizer.register_step_pre_hook(bring_all)
optimizer.register_step_post_hook(
    lambda *_: gone.extend(give_back(state["exp_avg_sq"]) for state in optimizer.state.values())
)
for step in range(8):
    train(step)
    optimizer.step()
""",
}
_END = """
hash = [p.detach().double().sum().item() for p in model.parameters()]
print(hash)
"""


@pytest.mark.parametrize("name", _TRAININGS)
def test_a_training_that_gives_memory_back(name, tmp_path: Path) -> None:
    printed = []
    for disabled in ("1", ""):
        done = subprocess.run(
            [sys.executable, "-c", _BEGINNING + _TRAININGS[name] + _END, tmp_path / "run"],
            capture_output=True, text=True, check=False, timeout=120,
            env={**os.environ, "UNDERTOW_DISABLED": disabled},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        printed.append(done.stdout)
    assert printed[0] == printed[1]
    run = undertow.open_run(tmp_path / "run")
    assert (run.status, run.steps.tolist()) == ("finished", list(range(8)))


def test_every_kernel_refuses() -> None:
    whole, part = torch.randn(64), torch.randn(64)[8:]
    for tensor in (whole, part):
        tensor.untyped_storage().resize_(0)
        assert is_freed(tensor)
        for kernel in (choose("cpu"), TorchKernel()):
            for call in (kernel.measure, kernel.fingerprint if kernel.name == "native" else kernel.measure):
                with pytest.raises(FreedMemoryError):
                    call([torch.ones(2), tensor])
            with pytest.raises(FreedMemoryError):
                kernel.unit_activity(tensor.reshape(-1, 8), 0)
    short = torch.randn(64)
    short.untyped_storage().resize_(100)
    assert is_freed(short)
    assert not is_freed(torch.empty(0))
    assert not is_freed(torch.randn(8, 8).T[2:])


def test_a_look_by_numpy_leaves_memory_resizable() -> None:
    tensor = torch.arange(4.0)
    assert np.array_equal(array_of(tensor), [0, 1, 2, 3])
    tensor.untyped_storage().resize_(0)
