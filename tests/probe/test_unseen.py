"""What Undertow does with the user's tensors is heard by nobody, and its frames are counted by nobody."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from tests.probe.training import mlp
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Functions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.heard.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.heard.append(str(func))
        return func(*args, **(kwargs or {}))


class Tagged(torch.Tensor):
    heard: list[str]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.heard.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


def _train(tagged: bool = False) -> None:
    torch.manual_seed(0)
    model = mlp(4, 8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.randn(8, 4)
        optimizer.zero_grad()
        model(x.as_subclass(Tagged) if tagged else x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("mode", [Functions, Operations])
def test_a_mode_of_the_users_hears_the_training_alone(watch, mode):
    heard = []
    for watched in (False, True):
        with mode() as listening:
            if watched:
                with watch(activations=True) as w:
                    _train()
                assert w.run.steps.tolist() == [0, 1, 2]
            else:
                _train()
        heard.append(listening.heard)
    assert heard[0] == heard[1]


def test_a_tensor_class_of_the_users_hears_the_training_alone(watch):
    heard = []
    for watched in (False, True):
        Tagged.heard = []
        if watched:
            with watch(activations=True) as w:
                _train(tagged=True)
            assert w.run.steps.tolist() == [0, 1, 2]
        else:
            _train(tagged=True)
        heard.append(Tagged.heard)
    assert heard[0]
    assert heard[0] == heard[1]


@pytest.mark.parametrize("how", ["backward", "closure"])
def test_a_warning_names_the_same_line(watch, how):
    """The level at which a warning is placed counts calls; ours are between, and must not count."""

    def place(level: int) -> list[tuple[str, int]]:
        def complain(gradient: torch.Tensor) -> None:
            warnings.warn("slow", stacklevel=level)

        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.weight.register_hook(complain)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                loss = model(torch.ones(1, 2)).sum()
                if how == "backward":
                    loss.backward()
                    optimizer.step()
                else:
                    optimizer.step(lambda loss=loss: loss.backward())
        return [(one.filename, one.lineno) for one in caught]

    for level in range(2, 6):  # from torch's engine to the loop
        plain = place(level)
        with watch(activations=True):
            assert place(level) == plain
        assert len(plain) == 2


def test_gradients_in_a_batch_and_lazy_modules(watch, capfd):
    model = nn.Sequential(nn.Linear(3, 3), nn.LazyBatchNorm1d(), nn.Tanh())
    with watch(activations=True) as w:
        model(torch.randn(4, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            out = model(torch.randn(4, 3))
            sides = torch.eye(4)[:, :, None].expand(4, 4, 3)
            (rows,) = torch.autograd.grad(out, model[0].weight, sides, retain_graph=True, is_grads_batched=True)
            assert rows.shape == (4, 3, 3)
            optimizer.zero_grad()
            out.square().mean().backward()
            optimizer.step()
    assert w.run.steps.tolist() == [0, 1, 2]
    assert w.run.status == "finished"
    assert "UT100" not in capfd.readouterr().err
