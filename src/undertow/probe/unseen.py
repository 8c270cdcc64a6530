"""Whether what runs now is a training at all, and how to read it without side effects.

Tracers (torch.jit, make_fx, torch.export, compilers) and transformations (torch.func) run a model to learn what it
does. That is no training, and operations of ours would become part of what they learn. Modes that a user has entered
(a count of operations, a default device) and classes of tensors see every operation there is: ours are done outside of
them.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.compiler import is_dynamo_compiling
from torch.utils._python_dispatch import _disable_current_modes

_core: Any = torch._C
_is_scripting: Callable[[], bool] = _core._is_tracing
_is_transforming: Callable[[], bool] = _core._are_functorch_transforms_active
_kinds: Any = _core._functorch.TransformType
_dispatch_modes: Callable[[], int] = _core._len_torch_dispatch_stack
_function_modes: Callable[[], int] = _core._len_torch_function_stack
_TRACING = (_core._TorchDispatchModeKey.PROXY, _core._TorchDispatchModeKey.FUNCTIONAL)


def is_traced() -> bool:
    """First of all dynamo, which follows this very code and would follow the rest as well."""
    if is_dynamo_compiling() or _is_scripting() or _is_transforming():
        return True
    if _dispatch_modes() and any(map(_core._get_dispatch_mode, (_core._TorchDispatchModeKey.FAKE, *_TRACING))):
        return True
    return bool(_function_modes()) and any(map(torch._ops._get_dispatch_mode_pre_dispatch, _TRACING))


def differentiates() -> bool:
    """Whether `torch.func.grad` is at work, alone or for many models at once: then this may be a training after all."""
    if is_dynamo_compiling() or _is_scripting() or _dispatch_modes() or not _is_transforming():
        return False
    kinds = [layer.key() for layer in _core._functorch.get_interpreter_stack() or ()]
    return kinds.count(_kinds.Grad) == 1 and all(kind in (_kinds.Grad, _kinds.Vmap) for kind in kinds)


def unwrapped(tensors: Iterable[Any]) -> tuple[Any, ...]:
    """What the transformations at work have wrapped."""
    found: list[Any] = []
    for tensor in tensors:
        while isinstance(tensor, torch.Tensor) and _core._functorch.is_functorch_wrapped_tensor(tensor):
            tensor = _core._functorch.get_unwrapped(tensor)
        found.append(tensor)
    return tuple(found)


@contextmanager
def outside_transforms() -> Iterator[None]:
    with temporarily_clear_interpreter_stack():
        yield


def unseen() -> AbstractContextManager[Any]:
    return _outside() if _dispatch_modes() else _core.DisableTorchFunction()


@contextmanager
def _outside() -> Iterator[None]:
    with _core.DisableTorchFunction(), _disable_current_modes():
        yield


def modules_of(root: nn.Module) -> Iterator[nn.Module]:
    """It and all of its parts, as torch keeps them: `modules()` may be the user's own, and draw random numbers."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        module = waiting.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield module
            waiting += reversed([part for part in module._modules.values() if part is not None])


def parameters_of(root: nn.Module) -> Iterator[nn.Parameter]:
    """Of all its parts, each once."""
    seen: set[int] = set()
    for module in modules_of(root):
        for parameter in module._parameters.values():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter
