"""Shares of gradient along connections, against contributions found by cutting one use of a value at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.probe.flow.shapes import SHAPES, Marks, Shape, Side


def exact_shares(model: Shape, x: torch.Tensor) -> dict[tuple[str, str], float]:
    """In double precision: what the gradient at a value lacks when one use of it is cut."""

    def gradients(marks: Marks) -> dict[str, list[torch.Tensor]]:
        own = copy.deepcopy(model).double()
        own.marks = marks
        own.loss(x.double()).backward()
        return {
            name: [torch.zeros_like(one) if one.grad is None else one.grad for one in values]
            for name, values in marks.values.items()
        }

    whole = gradients(uncut := Marks(keeps=True))
    shares: dict[tuple[str, str], float] = {}
    for producer, consumer, value in uncut.uses:
        g = whole[producer][value]
        part = g - gradients(Marks((producer, consumer, value), keeps=True))[producer][value]
        energy = sum(float(one.square().sum()) for one in whole[producer])
        shares[producer, consumer] = shares.get((producer, consumer), 0.0) + float((part * g).sum()) / energy
    return shares


def measured_share(run, producer: str, consumer: str) -> float:
    """Of the last step, with places where branches meet as shapes call them."""
    shares = dict(zip(run.graph.connections, run.along_connections("flow_share")[-1].tolist()))

    def fits(label: str, name: str) -> bool:
        operation, _, place = name.partition(" ")
        if not name.startswith("+"):
            return label == name
        merges = [start for start, _ in dict.fromkeys(shares) if start.startswith(f"{operation} ")]
        return label.startswith(f"{operation} ") and (not place or list(dict.fromkeys(merges))[int(place)] == label)

    found = [share for (start, end), share in shares.items() if fits(start, producer) and fits(end, consumer)]
    assert len(found) == 1, (producer, consumer, shares)
    return found[0]


def train(model: Shape, x: torch.Tensor, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model.loss(x).backward()
        optimizer.step()


@pytest.mark.parametrize("shape", SHAPES, ids=lambda one: one.__name__)
def test_shares_are_those_of_cut_uses(watch, shape: Callable[[], Shape]):
    torch.manual_seed(3)
    model, x = shape(), torch.randn(32, 8)
    expected = exact_shares(model, x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer=optimizer, activations=True) as w:
        train(model, x, optimizer, 2)
    assert w.run.graph.unmeasured == ""
    assert len(expected) > 1
    for (producer, consumer), share in expected.items():
        found = measured_share(w.run, producer, consumer)
        assert found == pytest.approx(share, rel=0.02, abs=1e-6), (producer, consumer)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda one: one.__name__)
def test_shares_of_a_value_add_up_to_one(watch, shape: Callable[[], Shape]):
    model, x = shape(), torch.randn(32, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer=optimizer, activations=True) as w:
        train(model, x, optimizer, 3)
    total: dict[str, float] = {}
    for (start, _), share in zip(w.run.graph.connections, w.run.along_connections("flow_share")[-1].tolist()):
        total[start] = total.get(start, 0.0) + share
    assert total == pytest.approx(dict.fromkeys(total, 1.0), abs=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda one: one.__name__)
def test_training_stays_the_same_to_the_bit(watch, shape: Callable[[], Shape]):
    def result(watched: bool) -> list[torch.Tensor]:
        torch.manual_seed(5)
        model, x = shape(), torch.randn(32, 8)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        if watched:
            with watch(model, optimizer=optimizer, activations=True) as w:
                train(model, x, optimizer, 5)
            assert (~np.isnan(w.run.along_connections("flow_share"))).any(axis=1).all()
        else:
            train(model, x, optimizer, 5)
        return [*model.parameters(), torch.rand(3)]

    assert all(torch.equal(a, b) for a, b in zip(result(False), result(True), strict=True))


def test_nothing_stays_behind(watch):
    """Neither hooks on a graph that is kept, nor anything of a gradient."""
    model, x = Side(), torch.randn(32, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer=optimizer, activations=True) as w:
        loss = model.loss(x)
        loss.backward(retain_graph=True)
        assert not w._recorder._signals.flow._handles
        loss.backward()
        optimizer.step()
    assert measured_share(w.run, "inp", "main") == pytest.approx(1.0, rel=1e-3)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_a_pass_that_is_differentiated_itself_is_left_alone(watch):
    model, x = Side(), torch.randn(32, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer=optimizer, activations=True) as w:
        for _ in range(2):
            model.loss(x).backward(create_graph=True)
            optimizer.step()
            model.zero_grad()
    assert "differentiated" in w.run.graph.unmeasured
    assert np.isnan(w.run.along_connections("flow_share")).all()
