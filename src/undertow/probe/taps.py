"""The places where Undertow touches torch, installed once per process and removed with the last listener.

Nothing is ever attached to the user's model or optimizer: copies and pickles of a watched model carry nothing
of ours. Each tap takes what the original takes and gives back what it gives. Listeners never raise.
"""

import functools
import sys
import threading
from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol

import torch
from torch.amp.grad_scaler import GradScaler
from torch.compiler import is_dynamo_compiling
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader

from undertow.errors import CriticalFindingError
from undertow.probe.signal_handlers import raised_by_handler
from undertow.probe.unseen import differentiates, is_traced, outside_transforms, unseen, unwrapped

_Make = Callable[[Callable[..., Any], Callable[..., None]], Callable[..., Any]]


class Listener(Protocol):
    """What is reported to a watched training: of backward passes only the outermost. Other listeners may hear of some
    of it only, and of what is made (`constructed`) and which modes are set (`mode_set`)."""

    def before_backward(self, roots: tuple[Any, ...], gradients: tuple[Any, ...]) -> None: ...
    def after_backward(self) -> None: ...
    def backward_failed(self) -> None: ...
    def gradients_taken(self, outputs: tuple[Any, ...], inputs: tuple[Any, ...], is_final: bool) -> None: ...
    def gradients_returned(self, inputs: tuple[Any, ...], gradients: tuple[Any, ...]) -> None: ...
    def before_step(self, optimizer: Optimizer, has_closure: bool) -> None: ...
    def closure_evaluated(self, optimizer: Optimizer) -> None: ...
    def after_step(self, optimizer: Optimizer) -> None: ...
    def loss_scaled(self, scaler: GradScaler) -> None: ...
    def scaler_stepped(self, optimizer: Optimizer) -> None: ...
    def gradients_averaged(self, passes: Any) -> None: ...
    def saved_tensors_hooked(self) -> None: ...
    def compiling(self) -> None: ...
    def exporting(self) -> None: ...
    def before_swap(self, first: Any, second: Any) -> None: ...


_listeners: tuple[Listener, ...] = ()
_undo: list[Callable[[], None]] = []
_times = 0  # that taps were installed
_OF_HOOKS = ("before_step", "after_step")
_lock = threading.RLock()
_in_hooks: set[int] = set()  # threads in which torch goes through the hooks of a step: removing one would end it
# Dynamo compiles functions that are called while it has this thread; it is given back what it had.
_use_compiler: Callable[[Any], Any] = torch._C._dynamo.eval_frame.set_eval_frame  # pyright: ignore
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


def _replace(owners: tuple[Any, ...], name: str, make: _Make) -> None:
    """Put a wrapper in place, to be undone unless somebody else has put theirs over it since: then it is there to stay,
    and silent from now on."""
    original = getattr(owners[0], name)
    made = make(original, functools.partial(_tell, _times))
    wrapper = functools.wraps(original)(uncounted(made, is_compiled=make is not _wrap_engine))

    def undo() -> None:
        for owner in owners:
            if owner.__dict__.get(name) is wrapper:
                setattr(owner, name, original)

    for owner in owners:
        setattr(owner, name, wrapper)
    _undo.append(undo)


def uncounted(wrapper: Any, is_compiled: bool = True) -> Any:
    """A warning from below it names the same line of the user's as without us: `warnings.warn` counts the calls up to
    there, and leaves out those of Python's importer, which it knows by the name of their file.

    All versions of CPython that we run on do so, by the same two words and in both of its implementations. Nothing
    else lets a caller be left out: `skip_file_prefixes` is up to who warns. The price is that a traceback through a
    tap shows no source line of ours. A Python that went by something else would fail tests/taps, where file and line
    of warnings are compared, and here a warning would name a line of torch's instead.

    Dynamo does not compile what the importer does either, which it knows by the beginning of that name. What it
    follows while it compiles something else, as it does the hooks of a step, must not be of that kind: it would stop.
    """
    name = f"{__file__} (importlib._bootstrap)" if is_compiled else f"<frozen importlib._bootstrap> ({__file__})"
    wrapper.__code__ = wrapper.__code__.replace(co_filename=name)
    return wrapper


def _install() -> None:
    global _times
    _times += 1
    for owners, name, make in _WRAPPED:
        _replace(owners, name, make)
    for handle in (
        register_optimizer_step_pre_hook(_before_step),
        register_optimizer_step_post_hook(_after_step),
    ):
        _undo.append(handle.remove)


def install_late() -> None:
    """For what a training has imported since: a pipeline divides what its micro-batches have added up."""
    stage = getattr(sys.modules.get("torch.distributed.pipelining.stage"), "_PipelineStageBase", None)
    scale = getattr(stage, "scale_grads", None)
    with _lock:
        if _listeners and scale is not None and not hasattr(scale, "__wrapped__"):
            _replace((stage,), "scale_grads", _wrap_scale_grads)


def _uninstall() -> None:
    """At once, or with the next backward pass when this is inside a step: taps without listeners do nothing."""
    while _undo and not _in_hooks:
        _undo.pop()()


def _remove_the_rest() -> None:
    with _lock:
        if not _listeners:
            _uninstall()


def _tell(installation: int, event: str, *arguments: Any) -> None:
    """Whatever fails here never reaches the user; listeners say themselves what failed in them."""
    try:
        if is_traced() or not _listeners or installation != _times:
            return
        if event in _OF_HOOKS:
            _in_hooks.add(get_ident())
        with unseen():
            for listener in _listeners:
                heard = getattr(listener, event, None)
                if heard is not None:
                    heard(*arguments)
    except CriticalFindingError:  # what the user has asked for
        raise
    except Exception as error:
        if raised_by_handler(error):
            raise
    finally:
        if event in _OF_HOOKS and not is_dynamo_compiling():
            _in_hooks.discard(get_ident())


def _is_outermost() -> bool:
    try:
        if is_traced() or in_backward():
            return False
        if not _listeners:
            _remove_the_rest()
        return bool(_listeners)
    except Exception:
        return False


def _wrap_engine(original: Callable[..., Any], tell: Callable[..., None]) -> Callable[..., Any]:
    """What `backward` and `grad` have made of their arguments. They themselves stay what they are: dynamo and tables
    of users know them by identity. Inside of a compiled function, dynamo would compile what we do around it as well."""

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        compiler = _use_compiler(None)
        try:
            if len(args) < 5 or not _is_outermost():
                _use_compiler(compiler)
                result = original(*args, **kwargs)
                _use_compiler(None)
                _tell_of_transformed(tell, args, result)
                return result
            if not kwargs.get("accumulate_grad"):
                is_final = not args[3]  # else a graph of them was asked for: they are part of another loss
                tell("gradients_taken", args[0], args[4], is_final)
                _use_compiler(compiler)
                result = original(*args, **kwargs)
                _use_compiler(None)
                if is_final:
                    tell("gradients_returned", args[4], result)
                return result
            tell("before_backward", args[0], args[1])
            try:
                _use_compiler(compiler)
                result = original(*args, **kwargs)
            except BaseException:
                _use_compiler(None)
                tell("backward_failed")
                raise
            _use_compiler(None)
            tell("after_backward")
            return result
        finally:
            _use_compiler(compiler)

    return run_backward


def _tell_of_transformed(tell: Callable[..., None], args: Any, gradients: Any) -> None:
    """`torch.func.grad`, by the tensors that the user has given it."""
    try:
        if not (_listeners and gradients is not None and len(args) >= 5 and differentiates()):
            return
        outputs, inputs, found = map(unwrapped, (args[0], args[4], gradients))
        if all(one is None or one.shape == of.shape for one, of in zip(found, inputs)):  # else one for each sample
            with outside_transforms(), torch.no_grad():
                losses = tuple(one.sum() for one in outputs)  # of many models at once, all are differentiated
                tell("gradients_taken", losses, inputs, True)
                tell("gradients_returned", inputs, found)
    except CriticalFindingError:
        raise
    except Exception as error:
        if raised_by_handler(error):
            raise


def _wrap_scale(original: Callable[..., Any], tell: Callable[..., None]) -> Callable[..., Any]:
    def scale(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        scaler = _argument(args, kwargs, 0, "self")
        if scaler.is_enabled():
            tell("loss_scaled", scaler)
        return result

    return scale


def _wrap_scaler_step(original: Callable[..., Any], tell: Callable[..., None]) -> Callable[..., Any]:
    def step(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        optimizer = _argument(args, kwargs, 1, "optimizer")
        if _argument(args, kwargs, 0, "self").is_enabled() and isinstance(optimizer, Optimizer):
            tell("scaler_stepped", optimizer)
        return result

    return step


def _wrap_scale_grads(original: Callable[..., Any], tell: Callable[..., None]) -> Callable[..., Any]:
    def scale_grads(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        tell("gradients_averaged", _argument(args, kwargs, 1, "grad_scale_factor"))
        return result

    return scale_grads


def _wrap_saved_tensors_hooks(original: Callable[..., Any], tell: Callable[..., None]) -> Callable[..., Any]:
    def enter(*args: Any, **kwargs: Any) -> Any:
        tell("saved_tensors_hooked")
        return original(*args, **kwargs)

    return enter


def _wrap_compiler(original: Callable[..., Any], tell: Callable[..., None]) -> Callable[..., Any]:
    def begin(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        tell("compiling")
        return result

    return begin


def _wrap_constructor(original: Callable[..., Any], tell: Callable[..., None]) -> Callable[..., Any]:
    def construct(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        tell("constructed", _argument(args, kwargs, 0, "self"))
        return result

    return construct


def _wrap_train(original: Callable[..., Any], tell: Callable[..., None]) -> Callable[..., Any]:
    """A module tells its parts: only what the program itself has called is of interest."""
    within: set[int] = set()  # threads

    def train(*args: Any, **kwargs: Any) -> Any:
        thread = get_ident()
        if thread in within:
            return original(*args, **kwargs)
        within.add(thread)
        try:
            result = original(*args, **kwargs)
        finally:
            within.discard(thread)
        tell("mode_set", result, args[1] if len(args) > 1 else kwargs.get("mode", True))
        return result

    return train


def _argument(args: Any, kwargs: Any, place: int, name: str) -> Any:
    """As the original has understood it: so wrappers take anything, and the original says what is wrong with it."""
    return args[place] if len(args) > place else kwargs[name]


def _wrap_export(original: Callable[..., Any], tell: Callable[..., None]) -> Callable[..., Any]:
    """A strict one refuses modules as long as there are global hooks on them."""

    def export(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("strict"):
            tell("exporting")
        return original(*args, **kwargs)

    return export


def _wrap_swap_tensors(original: Callable[..., Any], tell: Callable[..., None]) -> Callable[..., Any]:
    def swap_tensors(*args: Any, **kwargs: Any) -> Any:
        tell("before_swap", *args, *kwargs.values())
        return original(*args, **kwargs)

    return swap_tensors


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
    """Gives torch other arguments when there is a closure: gradients are what the optimizer gets when it has ended."""
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    has_closure = callable(closure)
    _tell(_times, "before_step", optimizer, has_closure)
    if not has_closure or is_dynamo_compiling():
        return None
    reported = _wrap_closure(optimizer, closure)
    return ((args[0], reported, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": reported})


def _wrap_closure(optimizer: Optimizer, closure: Callable[..., Any]) -> Callable[..., Any]:
    def evaluated(*args: Any, **kwargs: Any) -> Any:
        result = closure(*args, **kwargs)
        _tell(_times, "closure_evaluated", optimizer)
        return result

    return functools.wraps(closure)(uncounted(evaluated))


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    _tell(_times, "after_step", optimizer)


_WRAPPED: tuple[tuple[tuple[Any, ...], str, _Make], ...] = (
    ((torch.autograd, torch.autograd.graph), "_engine_run_backward", _wrap_engine),
    ((GradScaler,), "scale", _wrap_scale),
    ((GradScaler,), "step", _wrap_scaler_step),
    ((torch.autograd.graph.saved_tensors_hooks,), "__enter__", _wrap_saved_tensors_hooks),
    ((torch.utils,), "swap_tensors", _wrap_swap_tensors),
    ((torch.export,), "export", _wrap_export),
    ((Optimizer,), "__init__", _wrap_constructor),
    ((LRScheduler,), "__init__", _wrap_constructor),
    ((DataLoader,), "__init__", _wrap_constructor),
    ((GradScaler,), "__init__", _wrap_constructor),
    ((torch.nn.Module,), "train", _wrap_train),
    # What `torch.compile` makes of its backend: by then it has found nothing wrong with its arguments.
    *(
        ((vars(torch)[name],), "__init__", _wrap_compiler)
        for name in ("_TorchCompileInductorWrapper", "_TorchCompileWrapper")
        if name in vars(torch)
    ),
)
