"""What cannot be known of a loss is absent, and nothing of its graph is kept."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from tests.probe.signals.loss_steps import CLASSES, LABELS, ROWS, TARGETS, first, one_step
from tests.probe.training import batches, mlp
from torch.nn import functional as F  # noqa: N812

from undertow.schema import LossKind

UNKNOWN = {
    "policy gradient": lambda x: -(x.log_softmax(1).gather(1, LABELS[:, None])[:, 0] * TARGETS[:, 0]).mean(),
    "a norm": lambda x: x.norm(),
    "between two outputs": lambda x: (x[:6] - x[6:]).square().mean(),
    "energy": lambda x: x.logsumexp(1).mean(),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_known_is_absent(watch, name):
    found = first(one_step(watch, UNKNOWN[name])[0])
    assert found["loss_kind"] == LossKind.UNKNOWN
    signals = ("loss_factor", "loss_rows", "loss_input_is_probability", "loss_broadcast", "label_entropy")
    assert not [signal for signal in signals if signal in found]


def test_nothing_is_read_behind_hooks_on_saved_tensors(watch):
    unpacked = []

    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        unpacked.append(tensor.shape)
        return tensor

    model = mlp(6, 10, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watch(model) as w, torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        loss = F.cross_entropy(model(batches(6, ROWS)(0)), LABELS)
        before = len(unpacked)
        loss.backward()
        assert len(unpacked) > before
        once = len(unpacked)
        optimizer.step()
    assert "label_entropy" not in w.run.scalar_names
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        unpacked.clear()
        F.cross_entropy(model(batches(6, ROWS)(0)), LABELS).backward()
    assert len(unpacked) == once


class Same(torch.autograd.Function):
    """An operation whose node, unlike those of torch itself, can be referred to weakly."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def test_the_graph_is_let_go(watch):
    model = mlp(6, 10, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    gc.disable()
    try:
        with watch(model, activations=True):
            output = Same.apply(model(batches(6, ROWS)(0)))
            loss = F.cross_entropy(output, LABELS)
            gone = weakref.ref(output.grad_fn)
            loss.backward()
            optimizer.step()
            assert gone() is not None
            del loss, output
            assert gone() is None
    finally:
        gc.enable()
