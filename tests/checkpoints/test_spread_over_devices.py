"""Tensors spread over devices: read where all of it is here, named with a reason where it is not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import undertow
from undertow.schema import InputError

WHOLE = torch.arange(24.0).reshape(4, 6)


@pytest.fixture(params=[1, 2], ids=["alone", "two ranks"])
def mesh(request: pytest.FixtureRequest) -> Iterator[DeviceMesh]:
    """Of processes that exist only on paper: whoever tries to talk to them gets nothing useful."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=request.param)
    yield DeviceMesh("cpu", list(range(request.param)))
    torch.distributed.destroy_process_group()


def test_modules_with_spread_parameters(mesh: DeviceMesh) -> None:
    model = torch.nn.Linear(6, 4)
    model.weight = torch.nn.Parameter(distribute_tensor(WHOLE, mesh, [Shard(0)]))
    model.bias = torch.nn.Parameter(distribute_tensor(WHOLE[:, 0].clone(), mesh, [Replicate()]))
    report = undertow.weights(model)
    read = {tensor.path: tensor.moments.norm for tensor in report.tensors}
    assert read["bias"] == pytest.approx(float(WHOLE[:, 0].norm()))
    if mesh.size() == 1:
        assert read["weight"] == pytest.approx(float(WHOLE.norm()))
    else:
        assert [(one.path, "part of a tensor" in one.reason) for one in report.skipped] == [("weight", True)]


def test_plain_arrays(mesh: DeviceMesh) -> None:
    replicated = distribute_tensor(WHOLE, mesh, [Replicate()])
    assert undertow.WeightAnalyzer.compute_l2_norm(replicated) == pytest.approx(float(WHOLE.norm()))
    animator = undertow.GradientFlowAnimator()
    spread = distribute_tensor(WHOLE, mesh, [Shard(0)])
    if mesh.size() == 1:
        animator.record_step(0, {"fc": spread})
        np.testing.assert_allclose(animator.frames()[0].layers[0].grad_norm, float(WHOLE.norm()))
    else:
        for tensor in (spread, DTensor.from_local(WHOLE, mesh, [Partial()])):
            with pytest.raises(InputError, match=r"'fc'.*full_tensor\(\), on all ranks"):
                animator.record_step(0, {"fc": tensor})
