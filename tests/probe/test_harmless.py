"""Undertow changes nothing: same losses, same weights, same random streams; and nothing of it remains."""

from __future__ import annotations

import gc
import os
import random
import threading
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from tests.probe.architectures import CASES, Case
from tests.probe.training import batches, classes, mlp, train
from tests.taps.installed import changed, snapshot
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import undertow
from undertow.probe import taps
from undertow.probe.assemble import Assembler
from undertow.probe.compiled_step import CompiledStep
from undertow.probe.step import StepMachine


def run_case(case: Case, steps: int = 6) -> tuple[list[bytes], list[bytes], bytes]:
    optimizer = case.optimizer(case.model)
    losses = []
    for step in range(steps):
        inputs, *targets = case.batch(step)
        optimizer.zero_grad()
        loss = case.loss(case.model(inputs), *targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().float().numpy().tobytes())
    state = [value.detach().float().numpy().tobytes() for value in case.model.state_dict().values()]
    stream = torch.random.get_rng_state().numpy().tobytes() + np.float64(random.random()).tobytes()
    return losses, state, stream


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("found_by_itself", [False, True], ids=["given", "found"])
def test_training_is_bit_identical(watch, name, found_by_itself):
    results = []
    for watched in (False, True):
        torch.manual_seed(11)
        random.seed(11)
        case = CASES[name]()
        if watched:
            with watch(None if found_by_itself else case.model, activations=True) as w:
                results.append(run_case(case))
            assert w.run.steps.tolist() == list(range(6))
            assert w.run.status == "finished"
        else:
            results.append(run_case(case))
    plain, seen = results
    assert plain[0] == seen[0], "losses differ"
    assert plain[1] == seen[1], "weights differ"
    assert plain[2] == seen[2], "random streams differ"


class Noting(torch.Tensor):
    """A class of tensors that knows how often it is asked for something."""

    asked = 0

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        Noting.asked += 1
        return super().__torch_function__(function, types, args, kwargs or {})


class Draws(nn.Module):
    """Draws a random number whatever it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.layer.weight = nn.Parameter(self.layer.weight.detach().as_subclass(Noting))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs)

    def parameters(self, recurse: bool = True):
        torch.rand(1)
        return super().parameters(recurse)

    def named_modules(self, *arguments, **settings):
        torch.rand(1)
        return super().named_modules(*arguments, **settings)

    def __len__(self) -> int:
        raise AssertionError

    __bool__ = __iter__ = __len__


@pytest.mark.parametrize("found_by_itself", [False, True], ids=["given", "found"])
def test_methods_of_the_user_are_not_called(watch, found_by_itself):
    results = []
    for watched in (False, True):
        torch.manual_seed(11)
        Noting.asked, model = 0, Draws()
        optimizer = torch.optim.SGD(model.layer.parameters(), lr=0.1)
        with watch(None if found_by_itself else model, activations=True) if watched else nullcontext() as w:
            for _ in range(12):
                optimizer.zero_grad()
                model(torch.randn(3, 8)).square().mean().backward()
                optimizer.step()
        results.append((Noting.asked, torch.get_rng_state().tolist(), model.layer.bias.tolist()))
    assert results[0] == results[1]
    assert len(w.run.steps) == 12


def _open_files() -> set[str]:
    return {
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    }


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_close_leaves_nothing(watch, tmp_path):
    torch.optim.SGD(mlp(8, 16, 4).parameters(), lr=0.1)  # torch itself puts a function of its own into a class then
    originals = snapshot()
    from torch.nn.modules import module as modules
    from torch.optim import optimizer as optimizers

    tables = [
        modules._global_forward_hooks, modules._global_forward_pre_hooks,
        optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks,
    ]  # fmt: skip
    sizes = [len(table) for table in tables]
    threads = set(threading.enumerate())
    model = mlp(8, 16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    w = watch(model, activations=True)
    train(model, optimizer, 3, batches(8), classes(4))
    assert taps.installed()
    w.close()
    w.close()
    assert changed(originals) == set()
    assert [len(table) for table in tables] == sizes
    assert set(threading.enumerate()) == threads
    assert not [path for path in _open_files() if str(tmp_path) in path]
    assert not taps.installed()
    assert not optimizer._optimizer_step_pre_hooks
    assert all(not p._backward_hooks for p in model.parameters())


@pytest.mark.parametrize("every", [1, 1000])
def test_close_lets_the_model_go(watch, every):
    import weakref

    model = mlp(8, 16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    w = watch(model, activations=True, every=every)
    train(model, optimizer, 20, batches(8), classes(4))
    w.close()
    gone = weakref.ref(model[0].weight)
    del model, optimizer
    gc.collect()
    assert gone() is None


def test_internal_error_detaches_and_says_so_once(watch, capsys, monkeypatch):
    model = mlp(8, 16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    w = watch(model, quiet=False)
    train(model, optimizer, 2, batches(8), classes(4))

    def broken(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(w._recorder._reader, "read_and_mark", broken)
    train(model, optimizer, 3, batches(8), classes(4))
    said = capsys.readouterr().err
    assert said.count("UT100") == 1
    assert "a bug of ours" in said
    assert not taps.installed()
    w.close()
    assert w.run.status == "detached"
    assert w.run.steps.tolist() == [0, 1]
    assert any(event["kind"] == "error" for event in w.run.events)


@pytest.mark.parametrize(
    "moment", [(CompiledStep, "holds"), (StepMachine, "_finish")], ids=["before the step", "after it"]
)
def test_an_error_inside_a_step_spares_the_hooks_of_others(watch, capsys, monkeypatch, moment):
    """torch goes through a list of hooks at that moment, and ends the training when one disappears."""
    model = mlp(8, 16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    w = watch(model, quiet=False)
    heard: list[str] = []
    theirs = [
        register_optimizer_step_pre_hook(lambda *_: heard.append("before")),
        register_optimizer_step_post_hook(lambda *_: heard.append("after")),
    ]

    def broken(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("a bug of ours")

    train(model, optimizer, 2, batches(8), classes(4))
    monkeypatch.setattr(*moment, broken)
    train(model, optimizer, 3, batches(8), classes(4))
    for handle in theirs:
        handle.remove()
    assert heard == ["before", "after"] * 5
    assert capsys.readouterr().err.count("UT100") == 1
    w.close()
    assert not taps.installed()


def test_internal_error_in_the_background_detaches(watch, capsys, monkeypatch):
    model = mlp(8, 16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    w = watch(model, quiet=False)

    def broken(*args: object) -> None:
        raise ZeroDivisionError("a bug behind the scenes")

    monkeypatch.setattr(Assembler, "frames", broken)
    train(model, optimizer, 3, batches(8), classes(4))
    w.close()
    assert capsys.readouterr().err.count("UT100") == 1
    assert w.run.status == "detached"


def test_error_in_a_forward_hook_detaches(watch, capsys, monkeypatch):
    model = mlp(8, 16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    w = watch(model, quiet=False, activations=True)

    def broken(*args: object) -> None:
        raise ZeroDivisionError("a bug in the forward pass")

    monkeypatch.setattr(w._recorder._forward, "_read", broken)
    train(model, optimizer, 3, batches(8), classes(4))
    w.close()
    assert capsys.readouterr().err.count("UT100") == 1


def test_disabled_is_a_no_op(monkeypatch, tmp_path):
    monkeypatch.setenv("UNDERTOW_DISABLED", "1")
    monkeypatch.chdir(tmp_path)
    model = mlp(8, 16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with undertow.watch(model) as w:
        w.log(val_loss=1.0)
        w.on_finding(print)
        train(model, optimizer, 2, batches(8), classes(4))
    assert not taps.installed()
    assert not list(tmp_path.iterdir())


def test_a_users_error_passes_through(watch):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    w = watch(model)
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.zeros(()).backward()
    train(model, optimizer, 2, batches(4), classes(2))
    w.close()
    assert w.run.steps.tolist() == [0, 1]


def test_a_failing_training_is_marked(watch):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    w = watch(model)

    def fail() -> None:
        with w:
            train(model, optimizer, 2, batches(4), classes(2))
            raise ValueError("bad data")

    with pytest.raises(ValueError, match="bad data"):
        fail()
    assert w.run.status == "failed"
    assert w.run.steps.tolist() == [0, 1]


def test_on_critical(watch, capsys):
    def diverge(**arguments: object) -> undertow.Watch:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with watch(model, **arguments) as w:
            for step in range(4):
                optimizer.zero_grad()
                (model(batches(4)(step)).mean() * (float("nan") if step >= 1 else 1.0)).backward()
                optimizer.step()
        return w

    seen = []
    diverge(on_critical=seen.append)
    assert {finding.code for finding in seen} >= {"NUM002"}
    diverge(on_critical="warn", quiet=False)
    assert "NUM002" in capsys.readouterr().err
    with pytest.raises(undertow.errors.CriticalFindingError, match="NUM00"):
        diverge(on_critical="raise")
