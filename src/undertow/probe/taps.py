"""The places where Undertow touches torch, installed once per process and removed with the last listener.

Nothing is ever attached to the user's model or optimizer: copies and pickles of a watched model carry nothing
of ours. Each tap takes what the original takes and gives back what it gives. Listeners never raise.
"""

import functools
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from threading import get_ident
from typing import Any, Protocol

import torch
from torch.amp.grad_scaler import GradScaler
from torch.autograd.graph import GradientEdge
from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.overrides import is_tensor_like


class Listener(Protocol):
    """What a watched training hears. Only outermost backward passes are reported."""

    def before_backward(self, roots: tuple[Any, ...], gradients: tuple[Any, ...]) -> None: ...
    def after_backward(self) -> None: ...
    def gradients_taken(self, outputs: tuple[Any, ...], inputs: tuple[Any, ...]) -> None: ...
    def before_step(self, optimizer: Optimizer, has_closure: bool) -> None: ...
    def closure_evaluated(self, optimizer: Optimizer) -> None: ...
    def after_step(self, optimizer: Optimizer) -> None: ...
    def loss_scaled(self, scaler: GradScaler) -> None: ...
    def scaler_stepped(self, optimizer: Optimizer) -> None: ...
    def gradients_averaged(self, passes: Any) -> None: ...
    def saved_tensors_hooked(self) -> None: ...
    def compiling(self) -> None: ...
    def before_swap(self, first: Any, second: Any) -> None: ...


_listeners: tuple[Listener, ...] = ()
_undo: list[Callable[[], None]] = []
_lock = threading.RLock()
_in_hooks: set[int] = set()  # threads in which torch goes through the hooks of a step: removing one would end it
_graph_task: Callable[[], int] = torch._C._current_graph_task_id  # pyright: ignore[reportAttributeAccessIssue]


def add(listener: Listener) -> None:
    global _listeners
    with _lock:
        if not _undo:
            _install()
        _listeners = (*_listeners, listener)


def remove(listener: Listener) -> None:
    """Safe to call twice and from any thread."""
    global _listeners
    with _lock:
        if listener in _listeners:
            _listeners = tuple(one for one in _listeners if one is not listener)
        if not _listeners:
            _uninstall()


def forget_all() -> None:
    """For a forked child: it does not train, and must not write to its parent's run."""
    global _listeners, _lock
    _lock = threading.RLock()  # another thread may have held it, which is not here
    _listeners = ()
    _in_hooks.intersection_update((get_ident(),))
    _uninstall()


def installed() -> bool:
    return bool(_undo)


def in_backward() -> bool:
    """Whether this thread is inside a backward pass, be it one of autograd's own."""
    return _graph_task() != -1


def _kept(value: Any) -> Any:
    """What can be gone through only once, as `model.parameters()`, is gone through here: torch gets what came out."""
    if value is None or isinstance(value, (torch.Tensor, Collection)) or is_tensor_like(value):
        return value
    return tuple(value) if isinstance(value, Iterable) else value


def _as_tuple(value: Any) -> tuple[Any, ...]:
    if isinstance(value, torch.Tensor):
        return (value,)
    if isinstance(value, Mapping):
        return tuple(value.values())
    if isinstance(value, Collection) and not isinstance(value, GradientEdge):
        return tuple(value)
    return () if value is None else (value,)


def _replace(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put a wrapper in place, to be undone unless somebody else has put theirs over it since."""
    original = getattr(owner, name)
    wrapper = functools.wraps(original)(make(original))
    setattr(owner, name, wrapper)

    def undo() -> None:
        if owner.__dict__.get(name) is wrapper:
            setattr(owner, name, original)

    _undo.append(undo)


def _install() -> None:
    for owner, name, make in _WRAPPED:
        _replace(owner, name, make)
    for handle in (
        register_optimizer_step_pre_hook(_before_step),
        register_optimizer_step_post_hook(_after_step),
    ):
        _undo.append(handle.remove)


def look_again() -> None:
    """For what a training has imported since: a pipeline divides what its micro-batches have added up."""
    stage = getattr(sys.modules.get("torch.distributed.pipelining.stage"), "_PipelineStageBase", None)
    scale = getattr(stage, "scale_grads", None)
    with _lock:
        if _listeners and scale is not None and not hasattr(scale, "__wrapped__"):
            _replace(stage, "scale_grads", _wrap_scale_grads)


def _uninstall() -> None:
    """At once, or with the next backward pass when this is inside a step: taps without listeners do nothing."""
    while _undo and not _in_hooks:
        _undo.pop()()


def _remove_the_rest() -> None:
    with _lock:
        if not _listeners:
            _uninstall()


def _wrap_backward(original: Callable[..., Any]) -> Callable[..., Any]:
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or in_backward():
            return original(tensors, grad_tensors, *args, **kwargs)
        if not _listeners:
            _remove_the_rest()
        tensors, grad_tensors = _kept(tensors), _kept(grad_tensors)
        for listener in _listeners:
            listener.before_backward(_as_tuple(tensors), _as_tuple(grad_tensors))
        result = original(tensors, grad_tensors, *args, **kwargs)
        for listener in _listeners:
            listener.after_backward()
        return result

    return backward


def _wrap_grad(original: Callable[..., Any]) -> Callable[..., Any]:
    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or in_backward():
            return original(outputs, inputs, *args, **kwargs)
        outputs, inputs = _kept(outputs), _kept(inputs)
        for listener in _listeners:
            listener.gradients_taken(_as_tuple(outputs), _as_tuple(inputs))
        return original(outputs, inputs, *args, **kwargs)

    return grad


def _wrap_scale(original: Callable[..., Any]) -> Callable[..., Any]:
    def scale(self: GradScaler, outputs: Any) -> Any:
        result = original(self, outputs)
        if self.is_enabled():
            for listener in _listeners:
                listener.loss_scaled(self)
        return result

    return scale


def _wrap_scaler_step(original: Callable[..., Any]) -> Callable[..., Any]:
    def step(self: GradScaler, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, optimizer, *args, **kwargs)
        if self.is_enabled() and isinstance(optimizer, Optimizer):
            for listener in _listeners:
                listener.scaler_stepped(optimizer)
        return result

    return step


def _wrap_scale_grads(original: Callable[..., Any]) -> Callable[..., Any]:
    def scale_grads(self: Any, grad_scale_factor: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, grad_scale_factor, *args, **kwargs)
        for listener in _listeners:
            listener.gradients_averaged(grad_scale_factor)
        return result

    return scale_grads


def _wrap_saved_tensors_hooks(original: Callable[..., Any]) -> Callable[..., Any]:
    def enter(self: Any) -> Any:
        for listener in _listeners:
            listener.saved_tensors_hooked()
        return original(self)

    return enter


def _wrap_compile(original: Callable[..., Any]) -> Callable[..., Any]:
    def compile(*args: Any, **kwargs: Any) -> Any:
        for listener in _listeners:
            listener.compiling()
        return original(*args, **kwargs)

    return compile


def _wrap_swap_tensors(original: Callable[..., Any]) -> Callable[..., Any]:
    def swap_tensors(t1: Any, t2: Any) -> Any:
        for listener in _listeners:
            listener.before_swap(t1, t2)
        return original(t1, t2)

    return swap_tensors


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
    """Gives torch other arguments when there is a closure: gradients are what the optimizer gets when it has ended."""
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    has_closure = callable(closure)
    _in_hooks.add(get_ident())
    try:
        for listener in _listeners:
            listener.before_step(optimizer, has_closure)
    finally:
        _in_hooks.discard(get_ident())
    if not has_closure:
        return None
    reported = _wrap_closure(optimizer, closure)
    return ((args[0], reported, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": reported})


def _wrap_closure(optimizer: Optimizer, closure: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(closure)
    def evaluated(*args: Any, **kwargs: Any) -> Any:
        result = closure(*args, **kwargs)
        for listener in _listeners:
            listener.closure_evaluated(optimizer)
        return result

    return evaluated


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    _in_hooks.add(get_ident())
    try:
        for listener in _listeners:
            listener.after_step(optimizer)
    finally:
        _in_hooks.discard(get_ident())


_WRAPPED: tuple[tuple[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]], ...] = (
    (torch.autograd, "backward", _wrap_backward),
    (torch.autograd, "grad", _wrap_grad),
    (GradScaler, "scale", _wrap_scale),
    (GradScaler, "step", _wrap_scaler_step),
    (torch.autograd.graph.saved_tensors_hooks, "__enter__", _wrap_saved_tensors_hooks),
    (torch, "compile", _wrap_compile),
    (torch.utils, "swap_tensors", _wrap_swap_tensors),
)
