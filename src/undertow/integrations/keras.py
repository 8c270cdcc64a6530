"""Keras 3 on torch: `model.fit(…, callbacks=[UndertowCallback()])`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from undertow.errors import UndertowError
from undertow.integrations.numbers import single_numbers
from undertow.show.bars import say
from undertow.watch import Watch, watch

if TYPE_CHECKING:
    Callback = Any
else:
    try:
        from keras.callbacks import Callback
    except ImportError:
        raise UndertowError("Keras is not installed", way_out="pip install keras") from None


class UndertowCallback(Callback):
    """Watches each `fit`. Arguments are those of `undertow.watch`; `watch` is its handle while the fit lasts.

    Layers are named as Keras names their variables, with dots. Their outputs are not measured: layers of Keras are
    not modules that torch calls.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self._settings = settings
        self._steps: KerasOptimizer | None = None
        self.watch: Watch | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        self._close()  # a fit that raised has no end
        reason = _unfit(self.model)
        if reason is not None:
            say(f"undertow: {reason}. Nothing is watched; your training goes on")
            return
        variables = list(self.model.trainable_variables)
        self._steps = KerasOptimizer(self.model.optimizer, variables)
        self.watch = watch(_tree(variables), self._steps, **{"activations": False, **self._settings})

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.watch is not None and (numbers := single_numbers(logs or {}, prefix="val")):
            self.watch.log(**numbers)

    def on_train_end(self, logs: Any = None) -> None:
        self._close()

    def _close(self) -> None:
        if self._steps is not None:
            self._steps.let_go()
            self._steps = None
        if self.watch is not None:
            self.watch.close()


class KerasOptimizer(torch.optim.Optimizer):
    """Stands for an optimizer of Keras where torch expects one of its own: its step is Keras' `apply`."""

    def __init__(self, theirs: Any, variables: Sequence[Any]) -> None:
        super().__init__([variable.value for variable in variables], {"lr": _rate(theirs)})
        self._theirs = theirs
        self._apply: Callable[..., Any] = theirs.apply
        self._work: Callable[[], Any] = lambda: None
        theirs.apply = self._applied  # on the object: Keras saves and copies optimizers by their configuration

    def let_go(self) -> None:
        self._theirs.__dict__.pop("apply", None)

    def step(self, closure: Any = None) -> Any:  # torch calls our hooks around this
        return self._work()

    def _applied(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Keras clips inside `apply` and leaves `.grad` alone; what it will use is shown there while hooks look."""
        self.param_groups[0]["lr"] = _rate(self._theirs)
        clipped = _clipped(self._theirs, grads)
        owners = self.param_groups[0]["params"] if clipped is not None else []
        before = [parameter.grad for parameter in owners]

        def work() -> Any:
            for parameter, gradient in zip(owners, before):
                parameter.grad = gradient
            return self._apply(grads, trainable_variables)

        if clipped is not None and len(clipped) == len(owners):
            for parameter, gradient in zip(owners, clipped):
                parameter.grad = gradient
        self._work = work
        try:
            return self.step()
        finally:
            self._work = lambda: None


def _unfit(model: Any) -> str | None:
    """Why the numbers of this training would be wrong, if they would be."""
    backend, optimizer = import_module("keras").backend.backend(), model.optimizer
    if backend != "torch":
        return f"Keras runs on {backend}; Undertow watches it on torch (KERAS_BACKEND=torch)"
    if getattr(optimizer, "inner_optimizer", None) is not None or getattr(optimizer, "loss_scale_factor", None):
        return "Keras' own loss scaling is not supported"
    if getattr(optimizer, "gradient_accumulation_steps", None):
        return "gradient accumulation inside a Keras optimizer is not supported"
    if model.jit_compile is True:
        return "a Keras model compiled with jit_compile=True is not supported"
    return None


def _tree(variables: Sequence[Any]) -> nn.Module:
    """The variables by their names. Keras keeps them in one flat dictionary, in the order of the alphabet."""
    paths = [variable.path.split("/") for variable in variables]
    if len({path[0] for path in paths}) == 1 and all(len(path) > 2 for path in paths):
        paths = [path[1:] for path in paths]  # the name of the model itself
    root = nn.Module()
    for path, variable in zip(paths, variables):
        *parts, name = [part.replace(".", "_") for part in path]
        module = root
        for part in parts:
            child = module._modules.get(part)
            if child is None:
                child = module._modules[part] = nn.Module()
            module = child
        module._parameters[name] = variable.value
    return root


def _rate(optimizer: Any) -> Any:
    """As the tensor it is: to make a number of it would wait for the device."""
    rate = optimizer.learning_rate
    rate = getattr(rate, "value", rate)
    return rate.detach() if isinstance(rate, torch.Tensor) else float(rate)


def _clipped(optimizer: Any, gradients: Any) -> list[Any] | None:
    """What Keras will make of these gradients; None when it takes them as they are, or they are incomplete."""
    clips = (getattr(optimizer, name, None) for name in ("clipnorm", "global_clipnorm", "clipvalue"))
    if not any(clips) or any(gradient is None for gradient in gradients):
        return None
    return list(optimizer._clip_gradients(list(gradients)))
