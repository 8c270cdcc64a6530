"""A program's signal handler may raise in the middle of our work: the error is the program's, and it must get it."""

from __future__ import annotations

import functools
import signal

import pytest
import torch
from tests.probe.training import batches, classes, mlp, train

from undertow.probe.forward import ForwardTap
from undertow.probe.reader import TensorReader
from undertow.probe.signal_handlers import raised_by_handler


class Limit:
    def __call__(self, number: int, frame: object) -> None:
        raise TimeoutError("the program's own limit")

    def method(self, number: int, frame: object) -> None:
        self(number, frame)


def function(number: int, frame: object) -> None:
    raise TimeoutError("the program's own limit")


HANDLERS = {
    "function": function,
    "method": Limit().method,
    "object": Limit(),
    "partial": functools.partial(functools.partial(function)),
}


@pytest.fixture
def handler(request):
    before = signal.signal(signal.SIGUSR1, HANDLERS[request.param])
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("handler", HANDLERS, indirect=True)
@pytest.mark.parametrize(("kind", "name"), [(TensorReader, "read_and_mark"), (ForwardTap, "_entering")])
def test_it_reaches_the_program(watch, monkeypatch, handler, kind, name):
    model = mlp(8, 16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched = watch(model, activations=1)
    train(model, optimizer, 2, batches(8), classes(4))

    def interrupted(*arguments: object, **named: object) -> None:
        signal.raise_signal(signal.SIGUSR1)

    with monkeypatch.context() as changed:
        changed.setattr(kind, name, interrupted)
        with pytest.raises(TimeoutError, match="the program's own limit"):
            train(model, optimizer, 1, batches(8), classes(4))
    train(model, optimizer, 2, batches(8), classes(4))
    watched.close()


def test_errors_of_ours_are_not_taken_for_it():
    with pytest.raises(TimeoutError) as caught:
        raise TimeoutError
    assert not raised_by_handler(caught.value)
