"""Every function that Undertow puts itself in front of takes, gives and raises what it did before."""

import copy
import functools
import inspect
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.taps.installed import changed, places, snapshot
from torch import nn
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks

from undertow.probe import taps

_TAPS = [pytest.param(owner, name, id=f"{owner.__name__}.{name}") for owner, name in places()]
_TABLES = (
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_forward_hooks_always_called",
    "_global_optimizer_pre_hooks", "_global_optimizer_post_hooks", "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
)  # fmt: skip


def test_a_watch_touches_nothing_else(watching):
    before = snapshot()
    watching(nn.Linear(2, 2), activations=True)
    touched = changed(before)
    known = {tuple(param.values) for param in _TAPS if param.values[1] != "scale_grads"}
    assert {name for _, name in touched - known} == set(_TABLES)
    assert known <= touched


@pytest.mark.parametrize(("owner", "name"), _TAPS)
def test_it_looks_like_the_original(watching, owner, name):
    original = getattr(owner, name)
    pickled = pickle.dumps(original)
    watching(nn.Linear(2, 2))
    taps.install_late()
    tapped = getattr(owner, name)
    assert tapped is not original
    assert inspect.signature(tapped) == inspect.signature(original)
    assert inspect.getsource(tapped) == inspect.getsource(original)
    for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
        assert getattr(tapped, attribute) == getattr(original, attribute)
    assert pickle.dumps(tapped) == pickled
    assert pickle.loads(pickled) is tapped
    assert copy.copy(tapped) is copy.deepcopy(tapped) is tapped


def _error_of(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> tuple[type[Exception], str]:
    with pytest.raises(Exception) as caught:  # noqa: PT011  whichever it is
        function(*arguments, **keywords)
    return caught.type, str(caught.value)


@pytest.mark.parametrize(("owner", "name"), _TAPS)
def test_wrong_arguments_are_refused_as_before(watching, owner, name):
    original = getattr(owner, name)
    watching(nn.Linear(2, 2))
    taps.install_late()
    for arguments, keywords in [((), {}), ((1,) * 12, {}), ((), {"nonsense": 1}), ((object(),), {"self": 1})]:
        refused = _error_of(original, *arguments, **keywords)
        assert _error_of(getattr(owner, name), *arguments, **keywords) == refused


def test_what_users_call_is_what_it_was(watching):
    """Tables of functions by identity, as dynamo and `__torch_function__` have them, still hold."""
    public = [(torch.autograd, "backward"), (torch.autograd, "grad"), (torch, "compile"), (torch.Tensor, "backward")]
    before = [getattr(owner, name) for owner, name in public]
    watching(nn.Linear(2, 2), activations=True)
    assert [getattr(owner, name) for owner, name in public] == before


class OneWay:
    """Can be gone through, once; not even an iterator."""

    def __init__(self, *items: Any) -> None:
        self._items = iter(items)

    def __iter__(self) -> Iterator[Any]:
        return self._items


class BadDataError(Exception):
    pass


def _raising() -> Iterator[Any]:
    raise BadDataError("from the user's generator")
    yield


def _losses(model: nn.Module) -> list[torch.Tensor]:
    output = model(torch.linspace(-1, 1, 8).reshape(2, 4))
    return [output.square().mean(), output.sum()]


def _vector(model: nn.Module) -> torch.Tensor:
    return model(torch.ones(1, 4)).flatten()


_grad, _backward = lambda: torch.autograd.grad, lambda: torch.autograd.backward
_CALLS: dict[str, Callable[[nn.Module], Any]] = {
    "grad: parameters()": lambda m: _grad()(_losses(m)[0], m.parameters()),
    "grad: tensor, list": lambda m: _grad()(_losses(m)[0], list(m.parameters())),
    "grad: tensor, tensor": lambda m: _grad()(_losses(m)[0], m.weight),
    "grad: tensor, dict": lambda m: _grad()(_losses(m)[0], dict(m.named_parameters())),
    "grad: keywords": lambda m: _grad()(inputs=m.parameters(), outputs=_losses(m)[1]),
    "grad: list of outputs": lambda m: _grad()(_losses(m), m.weight),
    "grad: generators": lambda m: _grad()((loss for loss in _losses(m)), (p for p in m.parameters())),
    "grad: map, filter": lambda m: _grad()(map(torch.sum, _losses(m)), filter(torch.is_tensor, m.parameters())),
    "grad: one way": lambda m: _grad()(OneWay(*_losses(m)), OneWay(*m.parameters())),
    "grad: grad_outputs generator": lambda m: _grad()([_vector(m)], m.weight, (g for g in [torch.ones(3)])),
    "grad: edge": lambda m: _grad()(get_gradient_edge(_losses(m)[0]), m.parameters()),
    "grad: of an edge": lambda m: _grad()(_losses(m)[0], get_gradient_edge(m.weight)),
    "grad: of nothing": lambda m: _grad()(_losses(m)[0], []),
    "grad: of an empty generator": lambda m: _grad()(_losses(m)[0], (p for p in ())),
    "grad: a number": lambda m: _grad()(3, m.weight),
    "grad: no arguments": lambda m: _grad()(),
    "grad: one argument": lambda m: _grad()(_losses(m)[0]),
    "grad: unused": lambda m: _grad()(_losses(m)[0], torch.ones(2, requires_grad=True)),
    "grad: raising": lambda m: _grad()(_losses(m)[0], _raising()),
    "grad: twice": lambda m: _grad()(
        sum(g.square().sum() for g in _second_order(m)), m.parameters(), allow_unused=True
    ),
    "backward: tensor": lambda m: _losses(m)[0].backward(),
    "backward: gradient": lambda m: _vector(m).backward(torch.ones(3)),
    "backward: inputs": lambda m: _losses(m)[0].backward(inputs=m.bias),
    "backward: inputs, generator": lambda m: _losses(m)[0].backward(inputs=m.parameters()),
    "backward: list": lambda m: _backward()(_losses(m)),
    "backward: generator": lambda m: _backward()(loss for loss in _losses(m)),
    "backward: one way": lambda m: _backward()(OneWay(*_losses(m))),
    "backward: keywords": lambda m: _backward()(tensors=iter(_losses(m)), grad_tensors=None),
    "backward: grad_tensors generator": lambda m: _backward()([_vector(m)], (g for g in [torch.ones(3)])),
    "backward: edge": lambda m: _backward()(get_gradient_edge(_losses(m)[0])),
    "backward: a number": lambda m: _backward()(3),
    "backward: no arguments": lambda m: _backward()(),
    "backward: not differentiable": lambda m: torch.zeros(()).backward(),
    "backward: raising": lambda m: _backward()(_raising()),
    "backward: old name": lambda m: _backward()(_vector(m), grad_variables=torch.ones(3)),
    "backward: in a backward pass": lambda m: _Nested.apply(_losses(m)[0], m).backward(),
}


def _second_order(model: nn.Module) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(_losses(model)[0], model.parameters(), create_graph=True)


class _Nested(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, model: nn.Module) -> torch.Tensor:
        ctx.model = model
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        with torch.enable_grad():
            torch.autograd.backward(iter(_losses(ctx.model)))
        return gradients[0], None


def _plainly(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.tolist()
    if isinstance(value, dict):
        return {key: _plainly(item) for key, item in value.items()}
    return (type(value), [_plainly(item) for item in value]) if isinstance(value, (tuple, list)) else value


def _outcome(call: Callable[[nn.Module], Any]) -> Any:
    torch.manual_seed(3)
    model = nn.Linear(4, 3)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            result = _plainly(call(model))
        except Exception as error:
            result = (type(error), str(error))
    said = [(str(one.message), one.category, one.filename, one.lineno) for one in warned]
    return result, said, [_plainly(p.grad) for p in model.parameters()]


@pytest.mark.parametrize("call", _CALLS)
@pytest.mark.parametrize("found_by_itself", [False, True], ids=["given", "found"])
def test_it_does_what_the_original_does(watching, call, found_by_itself):
    plain = _outcome(_CALLS[call])
    seen = []

    def begin(model: nn.Module) -> Any:
        seen.append(watching(None if found_by_itself else model, activations=True))
        return _CALLS[call](model)

    assert _outcome(begin) == plain
    seen[0].close()
    assert "Undertow stepped aside" not in " ".join(seen[0].diagnose().coverage.reasons)


def test_arguments_are_gone_through_once_in_the_same_order(watching):
    def noted(name: str, items: Any) -> Iterator[Any]:
        for item in items:
            heard.append(name)
            yield item

    books = []
    for watched in (False, True):
        heard: list[str] = []
        books.append(heard)
        model = nn.Linear(4, 3)
        if watched:
            watching(model)
        torch.autograd.grad(noted("outputs", _losses(model)), noted("inputs", model.parameters()))
    assert books[0] == ["outputs"] * 2 + ["inputs"] * 2
    assert books[1] == books[0]


def test_a_loss_scaler_gives_what_it_gives(watching):
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watching(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    losses = _losses(model)
    scaled = scaler.scale(loss for loss in losses)
    assert [one.item() for one in scaled] == [(loss * 8).item() for loss in losses]
    assert type(scaler.scale(losses)) is list
    scaler.scale(losses[0]).backward()
    assert scaler.step(optimizer) is None
    with pytest.raises(RuntimeError, match=r"step\(\) has already been called"):
        scaler.step(optimizer)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'outputs'"):
        scaler.scale()


def test_saved_tensors_hooks_and_compile_give_what_they_give(watching):
    with saved_tensors_hooks(lambda x: x, lambda x: x) as plain:
        pass
    watching(nn.Linear(2, 2))
    with saved_tensors_hooks(lambda x: x, lambda x: x) as entered:
        assert entered is plain
    model = nn.Linear(2, 2)
    assert type(torch.compile(model, backend="eager")).__name__ == "OptimizedModule"
    assert callable(torch.compile(fullgraph=True))
    with pytest.raises(RuntimeError, match="both can't"):
        torch.compile(model, mode="default", options={"x": 1})


def test_a_closure_is_still_the_users(watching):
    class Keeps(torch.optim.SGD):
        def step(self, closure: Callable[[], Any]) -> Any:
            self.seen = (closure.__name__, getattr(closure, "note", None))
            return closure()

    model = nn.Linear(4, 3)
    optimizer = Keeps(model.parameters(), lr=0.1)
    watching(model, optimizer)
    answer = object()

    def evaluate() -> object:
        _losses(model)[0].backward()
        return answer

    evaluate.note = "mine"
    assert optimizer.step(evaluate) is answer
    assert optimizer.step(closure=evaluate) is answer
    assert optimizer.seen == ("evaluate", "mine")

    def fails() -> None:
        raise BadDataError

    with pytest.raises(BadDataError):
        optimizer.step(fails)


@pytest.mark.parametrize("call", [call for call in _CALLS if call.endswith(("list", "generator", "old name"))])
def test_it_does_so_in_another_thread(watching, call):
    plain = _outcome(_CALLS[call])
    watching(nn.Linear(4, 3))
    seen = []
    thread = threading.Thread(target=lambda: seen.append(_outcome(_CALLS[call])))
    thread.start()
    thread.join()
    assert seen == [plain]


class _Heard:
    """Hears everything, and writes it down."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self.events.append(name)


def test_references_outlive_the_watch_and_are_silent_then():
    before, scale_before = torch.autograd.graph._engine_run_backward, torch.amp.GradScaler.scale
    listener: Any = _Heard()
    taps.add(listener)
    during, scale_during = torch.autograd.graph._engine_run_backward, torch.amp.GradScaler.scale
    root = torch.ones((), requires_grad=True)
    arguments = (torch.ones(()),), False, False, ()
    before((root * 2,), *arguments, allow_unreachable=True, accumulate_grad=True)
    assert listener.events == []
    during((root * 2,), *arguments, allow_unreachable=True, accumulate_grad=True)
    assert listener.events == ["before_backward", "after_backward"]
    taps.remove(listener)
    assert torch.autograd.graph._engine_run_backward is torch.autograd._engine_run_backward is before
    during((root * 2,), *arguments, allow_unreachable=True, accumulate_grad=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    assert scale_during(scaler, root).item() == scale_before(scaler, root).item() == 8.0
    assert root.grad is not None
    assert root.grad.item() == 6.0
    assert len(listener.events) == 2


def test_a_tap_under_somebody_elses_is_not_heard_twice(monkeypatch):
    """A wrapper that cannot be taken away any more stays silent when the next watch has put its own over all."""
    first, second = _Heard(), _Heard()
    taps.add(first)
    ours = torch.autograd._engine_run_backward
    monkeypatch.setattr(torch.autograd, "_engine_run_backward", functools.partial(ours))
    taps.remove(first)
    root = torch.ones((), requires_grad=True)
    (root * 2).backward()
    assert first.events == []
    taps.add(second)
    (root * 2).backward()
    taps.remove(second)
    assert second.events == ["before_backward", "after_backward"]


def test_a_tap_hears_a_loop_whose_functions_were_imported_before(watching):
    from torch.autograd import backward

    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = watching(model, optimizer)
    for weight in (1.0, 0.5):
        backward(_losses(model)[1], torch.tensor(weight))
        expected = _losses(model)[1].item() * weight
        optimizer.step()
    watch.close()
    assert watch.run.steps.tolist() == [0, 1]
    assert watch.run.scalars("loss").tolist()[-1] == pytest.approx(expected)


def test_tensors_are_swapped_as_they_are(watching):
    """`torch.utils.swap_tensors` refuses what anybody refers to weakly; modules use it to move themselves."""
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched = watching(model, optimizer)
    for _ in range(3):  # gradients are left over
        _losses(model)[0].backward()
        optimizer.step()
    other = nn.Parameter(torch.zeros(3, 4))
    weight, wanted = model.weight, model.weight.detach().clone()
    assert torch.utils.swap_tensors(weight, other) is None
    assert weight is model.weight
    assert (weight.tolist(), other.tolist()) == ([[0.0] * 4] * 3, wanted.tolist())
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.double().float()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    with pytest.raises(AttributeError):
        torch.utils.swap_tensors(weight, None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _losses(model)[0].backward()
    optimizer.step()
    watched.close()
    assert (watched.run.status, len(watched.run.steps)) == ("finished", 4)
