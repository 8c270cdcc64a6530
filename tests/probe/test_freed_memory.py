"""Memory that is given back while a training runs (offloading, gathered parameters): no kernel reads it."""

import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import undertow
from undertow.measure.kernels import _KERNELS as _KERNELS_BY_NAME
from undertow.measure.kernels import available
from undertow.measure.kernels.interface import Want
from undertow.measure.kernels.native import NativeKernel
from undertow.measure.kernels.tensors import FreedMemoryError, array_of, is_freed, plain
from undertow.probe.step_signals import loss_of
from undertow.probe.tensor_list import sample, single

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
    "a frozen weight whose data is replaced by nothing": """
model[0].weight.requires_grad_(False)
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
watch()
for step in range(8):
    train(step)
    kept, model[0].weight.data = model[0].weight.data, torch.empty(0)
    optimizer.step()
    model[0].weight.data = kept
""",
    "a frozen weight that is there only while its model runs": """
model[0].weight.requires_grad_(False)
kept, model[0].weight.data = model[0].weight.data, torch.empty(0)
model[0].register_forward_pre_hook(lambda *_: setattr(model[0].weight, "data", kept))
model[0].register_forward_hook(lambda *_: setattr(model[0].weight, "data", torch.empty(0)))
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
watch()
for step in range(8):
    train(step)
    optimizer.step()
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
    there = next(path for path in run.layers.paths if path in ("2.weight", "last.weight"))
    assert np.isfinite(run.series("weight_norm", there)).all()


_KERNELS = [kernel for kernel in ("native", "torch", "reference", "triton") if kernel in available()]
_Made = tuple[torch.Tensor, int]  # a tensor, and how many bytes its memory must have
_VIEWS: dict[str, Callable[[torch.dtype], _Made]] = {
    "whole": lambda dtype: _made(torch.ones(64, dtype=dtype), 64),
    "at an odd place": lambda dtype: _made(torch.ones(64, dtype=dtype)[7:40], 40),
    "turned around": lambda dtype: _made(torch.ones(8, 8, dtype=dtype).T[2:], 64),
    "every third": lambda dtype: _made(torch.ones(64, dtype=dtype)[1::3], 62),
    "some columns": lambda dtype: _made(torch.ones(8, 8, dtype=dtype)[:, 2:5], 61),
    "expanded": lambda dtype: _made(torch.ones(3, 1, dtype=dtype).expand(3, 50), 3),
    "overlapping": lambda dtype: _made(torch.ones(10, dtype=dtype).as_strided((4, 4), (2, 1)), 10),
    "a single number": lambda dtype: _made(torch.ones(9, dtype=dtype)[8], 9),
}


def _made(tensor: torch.Tensor, elements: int) -> _Made:
    return tensor, elements * tensor.element_size()


@pytest.mark.parametrize("view", _VIEWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_every_kernel_reads_up_to_the_end_and_not_beyond(view: str, dtype: torch.dtype) -> None:
    kernels = [_KERNELS_BY_NAME[name]() for name in _KERNELS]
    tensor, needed = _VIEWS[view](dtype)
    tensor.untyped_storage().resize_(needed)
    assert not is_freed(tensor)
    for kernel in kernels:
        assert kernel.measure([tensor], Want.MOMENTS).moments[0, 0] == tensor.numel()
    for size in (needed - 1, needed // 2, 1, 0):
        tensor.untyped_storage().resize_(size)
        assert is_freed(tensor)
        for kernel in kernels:
            with pytest.raises(FreedMemoryError):
                kernel.measure([torch.ones(2), tensor])
            if kernel.name == "native":
                with pytest.raises(FreedMemoryError):
                    kernel.fingerprint([torch.ones(2), tensor])
            if tensor.dim():
                with pytest.raises(FreedMemoryError):
                    kernel.unit_activity(tensor, 0)
    assert not is_freed(torch.empty(0))


@pytest.mark.skipif("native" not in _KERNELS, reason="built without a C compiler")
@pytest.mark.parametrize("of_gradients", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_list_that_is_read_again_and_again(of_gradients: bool, dtype: torch.dtype) -> None:
    """Also where a tensor gets smaller memory at the address it had before."""
    whole = torch.ones(48, dtype=dtype)
    tensors = [torch.ones(5, dtype=dtype), whole[3:35]]
    owners = [torch.zeros_like(tensor) for tensor in tensors]
    for owner, tensor in zip(owners, tensors):
        owner.grad = tensor
    tensors = [owner.grad for owner in owners] if of_gradients else tensors
    of = [*map(weakref.ref, owners if of_gradients else tensors)]
    plain = NativeKernel().plain(tensors, of, of_gradients)
    storage, width = whole.untyped_storage(), whole.element_size()
    mark = plain.mark()
    assert plain.is_unchanged(mark)
    for size in (35 * width - 1, 4 * width, 0):
        storage.resize_(size)
        assert (plain.mark(), plain.read(), plain.any_nonfinite()) == (None, None, None)
        assert not plain.is_unchanged(mark)
    storage.resize_(35 * width)
    whole[3:35].fill_(2)
    assert plain.read() is not None
    assert plain.any_nonfinite() is False


def test_a_number_and_a_sample_of_what_is_no_longer_there() -> None:
    for size in (3, 0):
        number, many = torch.ones(()), torch.ones(64)
        number.untyped_storage().resize_(size)
        many.untyped_storage().resize_(64 * size)
        assert single(number, torch.float32) is None
        assert sample(many, torch.float32, 8) is None
        assert loss_of(number, None) is None


def test_sparse_parts() -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.ones(2, 4), (4, 4), check_invariants=False)
    sparse._values().untyped_storage().resize_(8)
    assert is_freed(sparse)
    with pytest.raises(FreedMemoryError):
        plain(sparse)


def test_a_look_by_numpy_leaves_memory_resizable() -> None:
    tensor = torch.arange(4.0)
    assert np.array_equal(array_of(tensor), [0, 1, 2, 3])
    tensor.untyped_storage().resize_(0)
