"""What a program lets go of is gone: a watch keeps no model, gradient, optimizer, batch or graph alive."""

from __future__ import annotations

import functools
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.probe.training import mlp
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from undertow.probe.forward import ForwardTap

_STEPS = 7
References = dict[str, "weakref.ref[Any]"]


class Follower:
    """Keeps weak references to all that a training is made of."""

    def __init__(self) -> None:
        self.references: References = {}

    def note(self, **objects: Any) -> None:
        for name, one in objects.items():
            self.references[name] = weakref.ref(one)

    def note_training(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.note(model=model, optimizer=optimizer)
        for name, module in model.named_modules():
            self.note(**{f"module {name}": module})
        for name, parameter in model.named_parameters():
            self.note(**{f"parameter {name}": parameter})
            if parameter.grad is not None:
                self.note(**{f"gradient {name}": parameter.grad})
        kept = [value for state in optimizer.state.values() for value in state.values()]
        for place, value in enumerate(value for value in kept if isinstance(value, torch.Tensor)):
            self.note(**{f"state {place}": value})

    def alive(self) -> list[str]:
        gc.collect()
        return sorted(name for name, ref in self.references.items() if ref() is not None)


def _loop(
    follower: Follower,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[torch.Tensor] | None = None,
    after: Callable[[torch.Tensor], object] = lambda loss: None,
) -> None:
    for step, batch in enumerate(batches or (torch.randn(4, 8) for _ in range(_STEPS))):
        optimizer.zero_grad()
        output = model(batch)
        loss = nn.functional.cross_entropy(output, torch.arange(4) % 3)
        loss.backward()
        optimizer.step()
        after(loss)
        follower.note(**{f"batch {step}": batch, f"output {step}": output, f"loss {step}": loss})
    follower.note_training(model, optimizer)


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(x))


def plain(follower: Follower) -> None:
    model = Deep()
    _loop(follower, model, torch.optim.Adam(model.parameters()))


def evaluated_afterwards(follower: Follower) -> None:
    """In training mode and with gradients, but without a step."""
    model = Deep()
    _loop(follower, model, torch.optim.Adam(model.parameters()))
    output = model(torch.randn(4, 8))
    follower.note(last=output)


def in_a_circle(follower: Follower) -> None:
    """As in many frameworks: the model knows its trainer, and a parameter's hook its model."""
    model = Deep()
    model.trainer = {"model": [model]}
    model.head.weight.register_hook(functools.partial(lambda model, gradient: None, model))
    _loop(follower, model, torch.optim.Adam(model.parameters()))


def scheduled(follower: Follower) -> None:
    model = Deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    _loop(follower, model, optimizer, after=lambda loss: scheduler.step())
    follower.note(scheduler=scheduler)


def clipped_and_accumulated(follower: Follower) -> None:
    model = Deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(_STEPS):
        for _ in range(3):
            model(torch.randn(4, 8)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    follower.note_training(model, optimizer)


def by_closure(follower: Follower) -> None:
    model = Deep()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    batch = torch.randn(4, 8)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        return loss

    for _ in range(_STEPS):
        optimizer.step(closure)
    follower.note(batch=batch, closure=closure)
    follower.note_training(model, optimizer)


def with_loss_scale(follower: Follower) -> None:
    model = Deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(4, 8)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    follower.note(scaler=scaler)
    follower.note_training(model, optimizer)


def loaded_by_workers(follower: Follower) -> None:
    model = Deep()
    loader = DataLoader(TensorDataset(torch.randn(4 * _STEPS, 8)), 4, num_workers=1)
    _loop(follower, model, torch.optim.Adam(model.parameters()), (batch for (batch,) in loader))
    follower.note(loader=loader)


def of_two_models(follower: Follower) -> None:
    generator, judge = mlp(8, 16, 8), mlp(8, 16, 1)
    first = torch.optim.Adam(generator.parameters())
    second = torch.optim.Adam(judge.parameters())
    for step in range(_STEPS):
        batch = torch.randn(4, 8)
        first.zero_grad()
        made = generator(batch)
        loss = judge(made).mean()
        loss.backward()
        first.step()
        second.zero_grad()
        judge(made.detach()).mean().backward()
        second.step()
        follower.note(**{f"batch {step}": batch, f"made {step}": made, f"loss {step}": loss})
        if step < _STEPS - 1:
            del batch, made, loss
            gc.collect()
            alive = [name for name, ref in follower.references.items() if ref() is not None]
            assert not alive, "while the loop still runs"
    follower.note_training(generator, first)
    follower.note_training(judge, second)


def without_a_step(follower: Follower) -> None:
    model = Deep()
    optimizer = torch.optim.Adam(model.parameters())
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    follower.note(loss=loss)
    follower.note_training(model, optimizer)


def differentiated_by_hand(follower: Follower) -> None:
    model = Deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(_STEPS):
        loss = model(torch.randn(4, 8)).square().mean()
        for parameter, gradient in zip(model.parameters(), torch.autograd.grad(loss, model.parameters())):
            parameter.grad = gradient
        optimizer.step()
    follower.note(loss=loss)
    follower.note_training(model, optimizer)


def of_tensors_alone(follower: Follower) -> None:
    weights = [torch.randn(8, 3, requires_grad=True), torch.zeros(3, requires_grad=True)]
    optimizer = torch.optim.Adam(weights)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        (torch.randn(4, 8) @ weights[0] + weights[1]).square().mean().backward()
        optimizer.step()
    follower.note(weight=weights[0], bias=weights[1], optimizer=optimizer)


def of_embeddings(follower: Follower) -> None:
    model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(_STEPS):
        tokens = torch.randint(0, 50, (4, 6))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
    follower.note(tokens=tokens, loss=loss)
    follower.note_training(model, optimizer)


def checkpointed(follower: Follower) -> None:
    class Checkpointed(Deep):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(checkpoint(self.inner, x, use_reentrant=False))

    model = Checkpointed()
    _loop(follower, model, torch.optim.Adam(model.parameters()))


def that_turns_nan(follower: Follower) -> None:
    model = Deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e30)
    _loop(follower, model, optimizer)


def with_a_replaced_head(follower: Follower) -> None:
    model = Deep()
    _loop(follower, model, torch.optim.Adam(model.parameters()))
    head = model.head
    follower.note(head=head, weight=head.weight, its_gradient=head.weight.grad)
    model.head = nn.Linear(16, 3)
    del head
    assert set(follower.alive()) & {"head", "weight", "its_gradient"} == set()
    _loop(follower, model, torch.optim.Adam(model.parameters()))


_TRAININGS = [
    plain, evaluated_afterwards, in_a_circle, scheduled, clipped_and_accumulated, by_closure, with_loss_scale,
    loaded_by_workers, of_two_models, without_a_step, differentiated_by_hand, of_tensors_alone, of_embeddings,
    checkpointed, that_turns_nan, with_a_replaced_head,
]  # fmt: skip


@pytest.mark.parametrize("activations", [None, True], ids=["", "activations"])
@pytest.mark.parametrize("training", _TRAININGS, ids=lambda training: training.__name__)
def test_trainings_one_after_another_leave_nothing_behind(watch, training, activations):
    with watch(activations=activations):
        for _ in range(3):
            follower = Follower()
            training(follower)
            assert follower.alive() == []


@pytest.mark.parametrize("every", [1, 3, None], ids=["every step", "every third", "governed"])
def test_a_sweep_is_recorded_model_by_model(watch, every):
    followers = []
    with watch(every=every) as w:
        for _ in range(6):
            followers.append(Follower())
            plain(followers[-1])
            assert followers[-1].alive() == []
    assert w.run.status == "finished"
    assert len(w.run.steps) == 6 * _STEPS
    heads = [layer.path for layer in w.run.layers if layer.path.endswith("head.weight")]
    assert len(heads) == 6
    for place, path in enumerate(heads):
        norms = w.run.series("gradient_norm", path)
        measured = np.flatnonzero(np.isfinite(norms)) // _STEPS
        assert set(measured.tolist()) == {place}, path
        assert len(measured) == (_STEPS if every == 1 else len(measured) or 1)
    assert all(layer.order is not None for layer in w.run.layers if not layer.is_module)


@pytest.mark.parametrize("given", ["model", "model and optimizer", "list", "dict"])
def test_what_is_given_is_not_kept(watch, given):
    model = Deep()
    optimizer = torch.optim.Adam(model.parameters())
    models = {"list": [model], "dict": {"name": model}}.get(given, model)
    follower = Follower()
    with watch(models, optimizer=optimizer if "and" in given else None) as w:
        _loop(follower, model, optimizer)
        assert "model" in follower.alive()
        del model, models, optimizer
        assert follower.alive() == []
        plain(follower)  # of no interest to a watch of another model
        assert follower.alive() == []
    assert len(w.run.steps) == _STEPS
    assert w.run.status == "finished"


def test_what_is_given_may_be_dropped_before_a_step(watch):
    follower = Follower()
    with watch(Deep(), optimizer=torch.optim.Adam(Deep().parameters())) as w:
        plain(follower)
        assert follower.alive() == []
    assert len(w.run.steps) == 0


def test_parts_of_a_container_made_for_the_watch_are_watched(watch):
    encoder, decoder = nn.Linear(8, 4), nn.Linear(4, 3)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
    with watch(nn.ModuleDict({"encoder": encoder, "decoder": decoder}), activations=True) as w:
        _loop(Follower(), lambda_module := nn.Sequential(encoder, decoder), optimizer)
    del lambda_module
    assert len(w.run.steps) == _STEPS
    for path in ("encoder.weight", "decoder.bias"):
        assert np.isfinite(w.run.series("gradient_norm", path)).all()
    assert np.isfinite(w.run.series("activation_std", "decoder")).all()


@pytest.mark.parametrize("given", [False, True], ids=["found", "given"])
def test_nothing_is_kept_after_the_end(watch, given):
    """Also where the training was in the middle of everything."""
    follower, model = Follower(), Deep()
    optimizer = torch.optim.Adam(model.parameters())
    w = watch(model if given else None, optimizer=optimizer if given else None, activations=True)
    _loop(follower, model, optimizer)
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    follower.note(last=loss)
    w.close()
    del model, optimizer, loss
    assert follower.alive() == []
    assert w.closed


@pytest.mark.parametrize("seam", ["_read", "_entering"])
def test_an_error_of_ours_keeps_nothing(watch, monkeypatch, seam):
    def fail(self: ForwardTap, *arguments: Any) -> None:
        raise ZeroDivisionError("of ours")

    follower = Follower()
    with watch(activations=True) as w:
        plain(follower)
        monkeypatch.setattr(ForwardTap, seam, fail)
        plain(follower)
        assert follower.alive() == []
        model = Deep()  # an error that nobody has heard of yet, since no step has ended
        follower.note(model=model, output=model(torch.randn(4, 8)))
        del model
    assert follower.alive() == []
    assert w.run.status == "detached"


def test_a_model_of_a_program_that_is_run(tmp_path):
    (tmp_path / "sweep.py").write_text(
        "import gc, torch, weakref\n"
        "alive = []\n"
        "for _ in range(5):\n"
        "    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))\n"
        "    optimizer = torch.optim.Adam(model.parameters())\n"
        "    for _ in range(20):\n"
        "        optimizer.zero_grad()\n"
        "        loss = model(torch.randn(4, 4)).square().mean()\n"
        "        loss.backward()\n"
        "        optimizer.step()\n"
        "    alive += map(weakref.ref, (model, model[0].weight.grad, optimizer, loss))\n"
        "    del model, optimizer, loss\n"
        "    gc.collect()\n"
        "    print(sum(one() is not None for one in alive))\n"
    )
    command = [sys.executable, "-m", "undertow", "run", "--quiet", "--run-dir", tmp_path / "run", "sweep.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0"] * 5


def test_a_compiled_model(watch):
    """Compiling keeps something alive by itself: not more with a watch than without."""

    def training(follower: Follower) -> None:
        model = Deep()
        compiled = torch.compile(model, backend="eager")
        _loop(follower, compiled, torch.optim.Adam(compiled.parameters()))

    left = []
    for watched in (False, True):
        torch._dynamo.reset()
        follower = Follower()
        if watched:
            with watch():
                training(follower)
                left.append(follower.alive())
        else:
            training(follower)
            left.append(follower.alive())
    torch._dynamo.reset()
    assert left[1] == left[0]


def _train_two(follower: Follower) -> None:
    """Two models are named after the variables that hold them."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (first, second)]
    output = second(first(torch.randn(2, 4)))
    follower.note(output=output)
    output.sum().backward()
    for one in optimizers:
        one.step()
    del output
    assert follower.alive() == []


def test_variables_of_a_function_that_runs_are_not_kept(watch):
    with watch() as w:
        _train_two(Follower())
    assert [layer.path for layer in w.run.layers if not layer.is_module] == [
        "first.weight", "first.bias", "second.weight", "second.bias",
    ]  # fmt: skip


def test_what_a_program_has_asked_of_its_variables_stays(watch):
    def training(rate: float, size: int) -> None:
        settings = locals()
        _train_two(Follower())
        assert (settings["rate"], settings["size"]) == (0.1, 8)

    with watch():
        training(0.1, 8)


@pytest.mark.parametrize("name", ["weights", "a gradient that is left"])
def test_tensors_can_be_swapped(watch, name):
    """`torch.utils.swap_tensors` refuses tensors that anybody refers to weakly, and `module.to` uses it."""
    model = Deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as w:
        _loop(Follower(), model, optimizer)
        model(torch.randn(4, 8)).square().mean().backward()
        for parameter in model.parameters():
            torch.utils.swap_tensors(parameter, nn.Parameter(parameter.detach().clone()))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        _loop(Follower(), model, optimizer)
    assert len(w.run.steps) == 2 * _STEPS
    assert w.run.status == "finished"
