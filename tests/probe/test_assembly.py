"""Frames assembled together are the frames assembled one by one, whichever way is taken."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.probe.training import listen_in
from torch import nn

from undertow.probe.assemble import Assembler
from undertow.probe.directions import Directions
from undertow.probe.readings import RawFrame
from undertow.schema import Frame


@pytest.fixture
def raws(watch) -> list[RawFrame]:
    """Ten steps; the weights are edited before the fourth, and gradients clipped at the seventh."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found: list[RawFrame] = []
    with watch(model, optimizer=optimizer, every=1, activations=False) as w:
        listen_in(w, found)
        for step in range(10):
            if step == 3:
                model[0].weight.data.mul_(1.5)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,))).backward()
            if step == 6:
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()
    assert len(found) == 10
    return found


def test_together_and_one_by_one(raws):
    one_by_one = Assembler()
    apart = [frame for place, raw in enumerate(raws) for frame in one_by_one.frames([raw], place)]
    _assert_same(Assembler().frames(raws, 0), apart)


def test_the_short_way_and_the_long_one(raws, monkeypatch):
    taken: list[bool] = []
    short = Directions._straight_on

    def listen(*arguments):
        taken.append(short(*arguments))
        return taken[-1]

    monkeypatch.setattr(Directions, "_straight_on", listen)
    batches = [raws[:1], raws[1:3], raws[3:4], raws[4:]]
    quick = Assembler()
    frames = [frame for batch in batches for frame in quick.frames(batch, batch[0].step)]
    assert not taken[0]  # nothing is known before the first step
    assert taken[-1]
    monkeypatch.setattr(Directions, "_straight_on", lambda *arguments: False)
    slow = Assembler()
    _assert_same(frames, [frame for batch in batches for frame in slow.frames(batch, batch[0].step)])


def _assert_same(frames: list[Frame], others: list[Frame]) -> None:
    assert [frame.step for frame in frames] == [frame.step for frame in others]
    for frame, other in zip(frames, others, strict=True):
        assert frame.scalars == pytest.approx(dict(other.scalars), nan_ok=True)
        assert frame.blocks.keys() == other.blocks.keys()
        for stream, block in frame.blocks.items():
            np.testing.assert_array_equal(block.values, other.blocks[stream].values, err_msg=stream)
