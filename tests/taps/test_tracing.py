"""Who traces, transforms, compiles or counts what a model does sees the model, and nothing of Undertow."""

import re
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tests.taps.test_conformance import _plainly
from torch import nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.0)
        self.inner = nn.Sequential(nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.drop(self.norm(self.first(x))))


class Decides(nn.Module):
    """Gives tracers something to warn of."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        return y + 1 if y.sum() > 0 else y


def _inputs() -> torch.Tensor:
    return torch.linspace(-1, 1, 32).reshape(4, 8)


def _train(model: nn.Module, steps: int = 3) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(_inputs()).square().sum().backward()
        optimizer.step()


def _without_names(graph: object) -> str:
    """A traced graph, without the numbers of its values and of the classes that tracing makes."""
    return re.sub(r"%[\w.]+|___torch_mangle_\d+", "%", str(graph))


class _Functions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def _seen_by(mode: Any, model: nn.Module) -> list[str]:
    with mode:
        _train(model)
    return mode.seen


class _Noted(torch.Tensor):
    """A subclass that answers by a table of functions, made before any watch."""

    known = {torch.autograd.grad, torch.autograd.backward}  # noqa: RUF012
    seen: list[tuple[str, bool]] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append((getattr(func, "__name__", str(func)), func in cls.known))
        return super().__torch_function__(func, types, args, kwargs or {})


def _subclass(model: nn.Module) -> Any:
    _Noted.seen = []
    for _ in range(2):
        model(_inputs()).sum().as_subclass(_Noted).backward()
        torch.autograd.grad(model(_inputs()).sum().as_subclass(_Noted), list(model.parameters()))
    return _Noted.seen


def _make_fx(function: Callable[..., Any], **settings: Any) -> str:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function, **settings)(_inputs()).code


def _fake(model: nn.Module) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        other = Net()
        _train(other)
    return [(type(p.grad).__name__, p.shape) for p in other.parameters()]


def _dual(model: nn.Module) -> Any:
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(model(forward_ad.make_dual(_inputs(), _inputs()))))


def _state(model: nn.Module) -> Any:
    return dict(model.named_parameters()), {name: value.clone() for name, value in model.named_buffers()}


def _per_sample(model: nn.Module) -> Any:
    weights, buffers = _state(model.eval())

    def loss(weights: Any, x: torch.Tensor) -> torch.Tensor:
        return functional_call(model, (weights, buffers), (x[None],)).square().sum()

    return torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, _inputs())


def _functional_grad(model: nn.Module) -> Any:
    weights, buffers = _state(model)
    return torch.func.grad(lambda w: functional_call(model, (w, buffers), (_inputs(),)).square().sum())(weights)


def _batched(model: nn.Module) -> Any:
    outputs = model(_inputs()).sum(0)
    return torch.autograd.grad(outputs, list(model.parameters()), torch.eye(4), is_grads_batched=True)


def _on_device(model: nn.Module) -> Any:
    with torch.device("meta"):
        _train(model)
        return torch.zeros(1).device.type


_CASES: dict[str, Callable[[nn.Module], Any]] = {
    "jit.trace": lambda m: _without_names(torch.jit.trace(m, _inputs(), check_trace=False).inlined_graph),
    "jit.trace, which warns": lambda m: _without_names(torch.jit.trace(Decides(m), _inputs()).inlined_graph),
    "jit.trace of a function": lambda m: _without_names(torch.jit.trace(lambda x: m(x) * 2, _inputs()).graph),
    "jit.script": lambda m: torch.jit.script(m)(_inputs()),
    "the tracer of torch.onnx": lambda m: _without_names(torch.jit._get_trace_graph(m, (_inputs(),))[0]),
    "fx": lambda m: torch.fx.symbolic_trace(m).code,
    "export": lambda m: str(torch.export.export(m, (_inputs(),)).graph),
    "export, strict": lambda m: str(torch.export.export(m, (_inputs(),), strict=True).graph),
    "make_fx": _make_fx,
    "make_fx, symbolic": lambda m: _make_fx(m, tracing_mode="symbolic"),
    "make_fx, before dispatch": lambda m: _make_fx(m, pre_dispatch=True),
    "make_fx of gradients": lambda m: _make_fx(lambda x: torch.autograd.grad(m(x).sum(), list(m.parameters()))),
    "func.grad": _functional_grad,
    "func.vmap": _per_sample,
    "func.jacrev": lambda m: torch.func.jacrev(lambda x: m.eval()(x).sum(0))(_inputs()),
    "func.hessian": lambda m: torch.func.hessian(lambda x: m.eval()(x).sum())(_inputs()),
    "func.jvp": lambda m: torch.func.jvp(m, (_inputs(),), (_inputs(),)),
    "functional.jacobian": lambda m: torch.autograd.functional.jacobian(m, _inputs(), vectorize=True),
    "functional.hvp": lambda m: torch.autograd.functional.hvp(lambda x: m(x).square().sum(), _inputs(), _inputs()),
    "forward mode": _dual,
    "batched gradients": _batched,
    "a mode of functions": lambda m: _seen_by(_Functions(), m),
    "a mode of operations": lambda m: _seen_by(_Operations(), m),
    "a default device": _on_device,
    "fake tensors": _fake,
    "a subclass": _subclass,
}


def _outcome(case: Callable[[nn.Module], Any]) -> Any:
    torch.manual_seed(0)
    model = Net()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            result = _plainly(case(model))
        except Exception as error:
            result = (type(error), str(error))
    said = [(str(one.message), one.category, one.filename, one.lineno) for one in warned]
    return result, said, [_plainly(p.grad) for p in model.parameters()], _plainly(model.state_dict())


def _same(watching: Callable[..., Any], case: Callable[[nn.Module], Any], found_by_itself: bool = False) -> Any:
    _outcome(case)  # what torch says only once, it has said
    plain = _outcome(case)
    seen: list[Any] = []

    def begin(model: nn.Module) -> Any:
        seen.append(watching(None if found_by_itself else model, activations=True))
        return case(model)

    assert _outcome(begin) == plain
    seen[0].close()
    assert "Undertow stepped aside" not in " ".join(seen[0].diagnose().coverage.reasons)
    return seen[0].run


@pytest.mark.parametrize("case", _CASES)
@pytest.mark.parametrize("found_by_itself", [False, True], ids=["given", "found"])
def test_nothing_of_undertow_is_seen(watching, case, found_by_itself):
    _same(watching, _CASES[case], found_by_itself)


@pytest.mark.parametrize("mode", [_Functions, _Operations])
def test_a_training_inside_a_mode_is_measured_all_the_same(watching, mode):
    run = _same(watching, lambda model: _seen_by(mode(), model))
    assert run.steps.tolist() == [0, 1, 2]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_what_was_traced_is_no_step_and_no_activation(watching):
    torch.manual_seed(0)
    model = Net()
    watch = watching(model, activations=True)
    _train(model, 1)
    torch.jit.trace(model.eval(), _inputs())
    torch.fx.symbolic_trace(model.train())
    _train(model, 2)
    watch.close()
    assert watch.run.steps.tolist() == [0, 1, 2]


def test_an_export_leaves_later_watches_their_activations(watching):
    """Dynamo keeps the compiled graph of the last one."""
    torch.export.export(Net().eval(), (_inputs(),), strict=True)
    model = Net()
    watch = watching(model, activations=True)
    _train(model)
    watch.close()
    assert "activation_calls" in watch.run.quantities
    assert watch.diagnose().coverage.reasons == ()


def _compiled(function: Callable[..., Any], *arguments: Any) -> Any:
    return torch.compile(function, backend="eager", fullgraph=True)(*arguments)


def _own_module(model: nn.Module) -> Any:
    model.compile(backend="eager", fullgraph=True)
    return model(_inputs())


def _saved(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        return (x * x).sum()


def _stepping(whole: bool) -> Callable[[nn.Module], Any]:
    def steps(model: nn.Module) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        backward = lambda: model(_inputs()).sum().backward()  # noqa: E731
        both = torch.compile(lambda: (backward(), optimizer.step()), backend="eager")
        step = torch.compile(lambda: (None, optimizer.step()), backend="eager")
        for _ in range(3):
            optimizer.zero_grad()
            if whole:
                both()
            else:
                backward()
                step()

    return steps


_COMPILED: dict[str, Callable[[nn.Module], Any]] = {
    "a model": lambda m: _compiled(m, _inputs()),
    "a model by its own method": _own_module,
    "a function that calls it": lambda m: _compiled(lambda x: m(x) * 2, _inputs()),
    "its backward pass": lambda m: torch.compile(m, backend="aot_eager", fullgraph=True)(_inputs()).sum().backward(),
    "hooks of saved tensors": lambda m: _compiled(_saved, _inputs().requires_grad_()),
    "torch.compile itself": lambda m: _compiled(lambda x: torch.compile(torch.sin, backend="eager")(2 * x), _inputs()),
    "gradients": lambda m: _compiled(lambda x: torch.autograd.grad(m(x).sum(), list(m.parameters())), _inputs()),
    "backward": lambda m: _compiled(lambda x: torch.autograd.backward(m(x).sum()), _inputs()),
    "backward of a tensor": lambda m: _compiled(lambda x: m(x).sum().backward(), _inputs()),
    "the step of an optimizer": _stepping(whole=False),
    "a whole step": _stepping(whole=True),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on importing its compiler
@pytest.mark.parametrize("case", _COMPILED)
@pytest.mark.parametrize("traces_gradients", [False, True])
def test_nothing_of_undertow_is_compiled(watching, case, traces_gradients):
    dynamo = pytest.importorskip("torch._dynamo")
    if traces_gradients and not hasattr(dynamo.config, "trace_autograd_ops"):
        pytest.skip("this torch cannot")

    def anew(model: nn.Module) -> Any:
        dynamo.reset()
        return _COMPILED[case](model)

    with dynamo.config.patch(trace_autograd_ops=True) if traces_gradients else nullcontext():
        _same(watching, anew)
