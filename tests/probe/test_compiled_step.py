"""Steps that reuse what was compiled for the one before give the frames that a new one gives, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.probe.training import listen_in
from torch import nn

from undertow.probe.assemble import Assembler
from undertow.probe.compiled_step import CompiledStep
from undertow.probe.quiet_steps import QuietSteps
from undertow.probe.readings import RawFrame
from undertow.probe.step import StepMachine
from undertow.probe.subjects import Subjects
from undertow.schema import Frame

STEPS = 40  # signals are looked at in the first 16 and in the 32nd; steps in between are the shortest of all
Loop = Callable[[nn.Sequential], tuple[torch.optim.Optimizer, Callable[[int], None]]]


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def _loss(model: nn.Module) -> torch.Tensor:
    return nn.functional.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,)))


def _plain(optimizer: torch.optim.Optimizer, model: nn.Module, after_backward: Callable[[int], Any] = lambda _: None):
    def step(_number: int) -> None:
        optimizer.zero_grad()
        _loss(model).backward()
        after_backward(_number)
        optimizer.step()

    return optimizer, step


def sgd(model: nn.Sequential):
    return _plain(_sgd(model), model)


def adam_with_groups(model: nn.Sequential):
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 1e-4}]
    return _plain(torch.optim.Adam(groups, lr=1e-2), model)


def zeroed_gradients(model: nn.Sequential):
    optimizer = _sgd(model)

    def step(number: int) -> None:
        optimizer.zero_grad(set_to_none=False)
        _loss(model).backward()
        optimizer.step()

    return optimizer, step


def never_cleared(model: nn.Sequential):
    optimizer = _sgd(model)

    def step(number: int) -> None:
        _loss(model).backward()
        optimizer.step()

    return optimizer, step


def clipping_sometimes(model: nn.Sequential):
    def clip(number: int) -> None:
        if number % 3 == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)

    return _plain(_sgd(model), model, clip)


def accumulation_in_between(model: nn.Sequential):
    def again(number: int) -> None:
        if number % 8 == 7:
            _loss(model).backward()

    return _plain(_sgd(model), model, again)


def frozen_and_thawed(model: nn.Sequential):
    model[0].requires_grad_(False)

    def thaw(number: int) -> None:
        if number == 12:
            model[0].requires_grad_(True)
        if number == 20:
            model[2].bias.requires_grad_(False)

    return _plain(_sgd(model), model, thaw)


def a_gradient_goes_missing(model: nn.Sequential):
    def drop(number: int) -> None:
        if number in (10, 11, 20):
            model[2].bias.grad = None

    return _plain(_sgd(model), model, drop)


def a_group_added_late(model: nn.Sequential):
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.05)

    def add(number: int) -> None:
        if number == 15:
            optimizer.add_param_group({"params": list(model[2].parameters())})

    return _plain(optimizer, model, add)


def weights_edited_between_steps(model: nn.Sequential):
    def edit(number: int) -> None:
        if number in (9, 17):
            with torch.no_grad():
                model[0].weight.data.mul_(1.5)

    return _plain(_sgd(model), model, edit)


def not_a_number(model: nn.Sequential):
    def spoil(number: int) -> None:
        if number == 14:
            model[0].weight.grad[0, 0] = float("nan")

    return _plain(_sgd(model), model, spoil)


def scheduled(model: nn.Sequential):
    optimizer = _sgd(model)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=STEPS)
    return _plain(optimizer, model, lambda number: schedule.step() if number else None)


def another_optimizer_midway(model: nn.Sequential):
    optimizers = [_sgd(model), torch.optim.Adam(model.parameters(), lr=1e-3)]

    def step(number: int) -> None:
        model.zero_grad()
        _loss(model).backward()
        optimizers[number > 15].step()

    return optimizers[0], step


def closures_midway(model: nn.Sequential):
    optimizer = _sgd(model)

    def step(number: int) -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = _loss(model)
            loss.backward()
            return loss

        if number % 10 == 9:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()

    return optimizer, step


def gradients_by_hand(model: nn.Sequential):
    optimizer = _sgd(model)

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss = _loss(model)
        if number % 7 == 6:
            found = torch.autograd.grad(loss, list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), found, strict=True):
                parameter.grad = gradient
        else:
            loss.backward()
        optimizer.step()

    return optimizer, step


LOOPS: list[Loop] = [
    sgd, adam_with_groups, zeroed_gradients, never_cleared, clipping_sometimes, accumulation_in_between,
    frozen_and_thawed, a_gradient_goes_missing, a_group_added_late, weights_edited_between_steps, not_a_number,
    scheduled, another_optimizer_midway, closures_midway, gradients_by_hand,
]  # fmt: skip


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_compiled_step_is_as_good_as_a_new_one(watch, monkeypatch, loop: Loop, every: int):
    compiled, quiet = _count(monkeypatch)
    reused = _record(watch, loop, every)
    assert len(compiled) < STEPS, "every step was compiled anew"
    assert quiet or every > 1 or loop is not sgd, "no step was quiet"
    with monkeypatch.context() as patch:
        patch.setattr(CompiledStep, "holds", lambda self, optimizer: False)
        patch.setattr(QuietSteps, "_count", lambda self, step: 0)
        compiled.clear()
        quiet.clear()
        anew = _record(watch, loop, every)
    assert len(compiled) >= STEPS
    assert not quiet
    _assert_same(Assembler().frames(reused, 0), Assembler().frames(anew, 0))
    for one, other in zip(reused, anew, strict=True):
        assert one.before_is_previous == other.before_is_previous
        assert (one.stepped is None) == (other.stepped is None)
        assert len(one.micro_gradients) == len(other.micro_gradients)
        for name in ("exposed", "state", "carried", "optimizer"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def test_parameters_that_come_later_are_looked_for_all_the_same(watch, monkeypatch):
    """However many quiet steps there are in a row, none of them passes over a search."""
    _, quiet = _count(monkeypatch)
    searches: list[int] = []
    rescan = Subjects.rescan
    monkeypatch.setattr(Subjects, "rescan", lambda self: searches.append(len(done)) or rescan(self))
    model, done = nn.Linear(6, 3), list[int]()
    optimizer = _sgd(model)
    with watch(model, every=1, activations=False):
        for step in range(107):
            optimizer.zero_grad()
            _loss(model).backward()
            optimizer.step()
            done.append(step)
    assert quiet
    assert searches == [1, 10, 100]


def _count(monkeypatch) -> tuple[list[Any], list[Any]]:
    """Steps compiled, and steps in which nothing but the usual was due."""
    compiled: list[Any] = []
    quiet: list[Any] = []
    initialise, emit = CompiledStep.__init__, StepMachine._emit_quietly

    def compile_one(self: CompiledStep, *arguments: Any) -> None:
        compiled.append(self)
        initialise(self, *arguments)

    def emit_one(self: StepMachine, *arguments: Any) -> None:
        quiet.append(self)
        emit(self, *arguments)

    monkeypatch.setattr(CompiledStep, "__init__", compile_one)
    monkeypatch.setattr(StepMachine, "_emit_quietly", emit_one)
    return compiled, quiet


def _record(watch, loop: Loop, every: int) -> list[RawFrame]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    optimizer, step = loop(model)
    found: list[RawFrame] = []
    with watch(model, optimizer=optimizer, every=every, activations=False) as w:
        listen_in(w, found)
        for number in range(STEPS):
            step(number)
    assert len(found) == STEPS
    return found


def _assert_same(frames: list[Frame], others: list[Frame]) -> None:
    for frame, other in zip(frames, others, strict=True):
        assert frame.step == other.step
        scalars, expected = (
            {name: value for name, value in one.scalars.items() if name != "step_time"} for one in (frame, other)
        )
        assert list(frame.scalars) == list(other.scalars)
        np.testing.assert_array_equal(list(scalars.values()), list(expected.values()), err_msg=str(list(scalars)))
        assert frame.blocks.keys() == other.blocks.keys()
        for stream, block in frame.blocks.items():
            np.testing.assert_array_equal(block.layer_ids, other.blocks[stream].layer_ids)
            bits, expected_bits = block.values.view(np.uint32), other.blocks[stream].values.view(np.uint32)
            np.testing.assert_array_equal(bits, expected_bits, err_msg=f"{stream} at step {frame.step}")
