"""Loops that update their weights without an optimizer that reports it, and programs that only seem to."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest
import torch
from tests.probe.training import batches, mlp
from torch import nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
from torch.nn.functional import cross_entropy

STEPS, RATE = 8, 0.1
Weights = dict[str, torch.Tensor]
Step = tuple[float, Weights, Weights, Weights]  # loss, gradients, weights before and after


def data(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(step)
    return torch.randn(8, 6, generator=source), torch.randint(0, 4, (8,), generator=source)


def kept(weights: Mapping[str, torch.Tensor]) -> Weights:
    return {name: tensor.detach().clone() for name, tensor in weights.items()}


def gradient(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.grad is not None
    return tensor.grad


def first(model: nn.Sequential) -> torch.Tensor:
    return next(iter(model.parameters()))


def in_place(parameters: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for parameter in parameters:
            parameter -= RATE * gradient(parameter)


def through_data(parameters: list[torch.Tensor]) -> None:
    for parameter in parameters:
        parameter.data.add_(-RATE * gradient(parameter))


def with_new_data(parameters: list[torch.Tensor]) -> None:
    for parameter in parameters:
        parameter.data = parameter.data - RATE * gradient(parameter)


def with_set(parameters: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for parameter in parameters:
            parameter.set_((parameter - RATE * gradient(parameter)).detach())  # pyright: ignore[reportArgumentType]


def all_at_once(parameters: list[torch.Tensor]) -> None:
    with torch.no_grad():
        gradients = [gradient(parameter) for parameter in parameters]
        torch._foreach_add_(parameters, gradients, alpha=-RATE)  # pyright: ignore[reportPrivateImportUsage]


def moving(move: Callable[[list[torch.Tensor]], None]) -> Callable[[], Iterator[Step]]:
    def loop() -> Iterator[Step]:
        model = mlp(6, 10, 4)
        named = dict(model.named_parameters())
        for step in range(STEPS):
            inputs, labels = data(step)
            model.zero_grad()
            loss = cross_entropy(model(inputs), labels)
            loss.backward()
            gradients = kept({name: gradient(parameter) for name, parameter in named.items()})
            before = kept(named)
            move(list(named.values()))
            yield loss.item(), gradients, before, kept(named)

    return loop


def differentiated() -> Iterator[Step]:
    model = mlp(6, 10, 4)
    named = dict(model.named_parameters())
    for step in range(STEPS):
        inputs, labels = data(step)
        loss = cross_entropy(model(inputs), labels)
        gradients = dict(zip(named, torch.autograd.grad(loss, list(named.values()))))
        before = kept(named)
        with torch.no_grad():
            for name, parameter in named.items():
                parameter -= RATE * gradients[name]
        yield loss.item(), gradients, before, kept(named)


class Layer:
    """As people write them who learn how a network works."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.weight = (torch.randn(inputs, outputs) / inputs**0.5).requires_grad_()
        self.bias = torch.zeros(outputs, requires_grad=True)

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        return values @ self.weight + self.bias


def without_modules() -> Iterator[Step]:
    layers = [Layer(6, 10), Layer(10, 4)]
    named = {
        f"layers.{i}.{name}": getattr(layer, name) for i, layer in enumerate(layers) for name in ("weight", "bias")
    }
    for step in range(STEPS):
        inputs, labels = data(step)
        loss = cross_entropy(layers[1](torch.tanh(layers[0](inputs))), labels)
        for parameter in named.values():
            parameter.grad = None
        loss.backward()
        gradients, before = kept({name: gradient(parameter) for name, parameter in named.items()}), kept(named)
        for parameter in named.values():
            parameter.data -= RATE * gradient(parameter)
        yield loss.item(), gradients, before, kept(named)


def with_new_tensors() -> Iterator[Step]:
    model = mlp(6, 10, 4)
    parameters = {name: one.detach().clone().requires_grad_() for name, one in model.named_parameters()}
    for step in range(STEPS):
        inputs, labels = data(step)
        loss = cross_entropy(functional_call(model, parameters, (inputs,)), labels)
        gradients = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values()))))
        before = kept(parameters)
        parameters = {
            name: (one - RATE * gradients[name]).detach().requires_grad_() for name, one in parameters.items()
        }
        yield loss.item(), gradients, before, kept(parameters)


def transformed() -> Iterator[Step]:
    model = mlp(6, 10, 4)
    parameters = kept(dict(model.named_parameters()))
    step_of = grad_and_value(lambda weights, x, y: cross_entropy(functional_call(model, weights, (x,)), y))
    for step in range(STEPS):
        gradients, loss = step_of(parameters, *data(step))
        before = kept(parameters)
        parameters = {name: one - RATE * gradients[name] for name, one in parameters.items()}
        yield loss.item(), gradients, before, kept(parameters)


def ensemble() -> Iterator[Step]:
    models = [mlp(6, 10, 4) for _ in range(3)]
    parameters = kept(stack_module_state(models)[0])
    single = grad_and_value(lambda weights, x, y: cross_entropy(functional_call(models[0], weights, (x,)), y))
    for step in range(STEPS):
        gradients, losses = vmap(single, in_dims=(0, None, None))(parameters, *data(step))
        before = kept(parameters)
        parameters = {name: one - RATE * gradients[name] for name, one in parameters.items()}
        yield losses.sum().item(), gradients, before, kept(parameters)


LOOPS = {
    **{move.__name__: moving(move) for move in (in_place, through_data, with_new_data, with_set, all_at_once)},
    **{loop.__name__: loop for loop in (differentiated, without_modules, with_new_tensors, transformed, ensemble)},
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_what_is_recorded_is_what_happened(watch, loop):
    torch.manual_seed(1)
    with watch(None) as w:
        book = list(loop())
    torch.manual_seed(1)
    unwatched = list(loop())
    for watched, other in zip(book, unwatched):
        assert all(torch.equal(watched[3][name], other[3][name]) for name in other[3])
    run = w.run
    count = len(run.steps)
    assert count >= STEPS - 1  # of tensors that are gone by then nobody can tell how they were moved last
    assert {layer.path for layer in run.layers if not layer.is_module} == set(book[0][1])
    np.testing.assert_allclose(run.scalars("loss"), [loss for loss, *_ in book][:count], rtol=1e-6)
    for name in book[0][1]:
        norms = [float(gradients[name].norm()) for _, gradients, _, _ in book]
        np.testing.assert_allclose(run.series("gradient_norm", name), norms[:count], rtol=1e-5)
        moves = [float((after[name] - before[name]).norm()) for _, _, before, after in book]
        np.testing.assert_allclose(run.series("update_norm", name), moves[:count], rtol=1e-3)
        weights = [float(after[name].norm()) for *_, after in book]
        np.testing.assert_allclose(run.series("weight_norm", name), weights[:count], rtol=1e-5, atol=1e-7)
    assert (run.series("gradient_optimizer", next(iter(book[0][1]))) >= 0).all()
    assert not [finding for finding in w.findings if finding.code == "UPD003"]


@pytest.mark.parametrize("loop", [in_place, with_new_tensors], ids=lambda loop: loop.__name__)
def test_nothing_adds_up_over_many_steps(watch, monkeypatch, loop):
    monkeypatch.setattr(f"{__name__}.STEPS", 2000)
    alive: list[int] = []
    with watch(None, every="auto") as w:
        for step, _ in enumerate(moving(loop)() if loop is in_place else loop()):
            if step in (500, 1999):
                assert w._mailbox.flush(60)  # up to 256 frames wait, of some 40 objects each
                gc.collect()
                alive.append(len(gc.get_objects()))
    assert alive[1] < alive[0] + 500


def test_the_last_step_of_a_thread_that_has_ended(watch):
    model = mlp(6, 10, 4)

    def train() -> None:
        for step in range(STEPS):
            inputs, labels = data(step)
            model.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            in_place(list(model.parameters()))

    with watch(None) as w:
        training = threading.Thread(target=train)
        training.start()
        training.join()
    assert len(w.run.steps) == STEPS


def test_gradients_that_are_only_inspected_make_no_step(watch):
    model = mlp(6, 10, 4)
    with watch(None) as w:
        for step in range(600):
            inputs, labels = data(step)
            inputs.requires_grad_()
            model.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            inputs = inputs + 0.1 * gradient(inputs).sign()
        assert len(w._recorder._state.now.losses) < 300
        assert len(w._recorder._state.now.micro) == 0
    assert len(w.run.steps) == 0
    assert "600 backward passes" in w.run.facts.reasons[0]
    assert not len(w.run.layers)


def test_micro_batches_of_a_manual_update(watch):
    model = mlp(6, 10, 4)
    with watch(None) as w:
        for step in range(12):
            inputs, labels = data(step)
            cross_entropy(model(inputs), labels).backward()
            if step % 3 == 2:
                in_place(list(model.parameters()))
                model.zero_grad()
    assert w.run.steps.tolist() == [0, 1, 2, 3]
    assert w.run.scalars("backward_count").tolist() == [3, 3, 3, 3]
    assert np.isfinite(w.run.series("gradient_noise_scale", "0.weight")).all()


def test_two_networks_that_are_updated_in_turn(watch):
    maker, judge = mlp(4, 8, 6), mlp(6, 8, 1)
    with watch(None) as w:
        for step in range(8):
            for part in (judge, maker):
                made = maker(batches(4)(step))
                loss = judge(made.detach() if part is judge else made).mean()
                maker.zero_grad()
                judge.zero_grad()
                loss.backward()
                in_place(list(part.parameters()))
    run = w.run
    assert len(run.steps) == 16
    judged = run.series("update_norm", next(path for path in run.layers.paths if path.endswith("0.weight")))
    assert set(np.isfinite(judged[4:]).tolist()) == {True, False}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on importing its compiler
@pytest.mark.parametrize("given", [True, False])
def test_a_compiled_step_is_seen_by_what_it_moves(watch, given: bool):
    model = mlp(6, 10, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    compiled = torch.compile(optimizer.step, backend="eager")
    moves: list[float] = []
    with watch(model if given else None) as w:
        for step in range(6):
            inputs, labels = data(step)
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            before = first(model).detach().clone()
            compiled()
            moves.append(float((first(model).detach() - before).norm()))
    np.testing.assert_allclose(w.run.series("update_norm", "0.weight"), moves, rtol=1e-3)
    assert (w.run.scalars("lr") == RATE).all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute:UserWarning")  # torch's own
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_a_step_that_is_compiled_whole_is_seen(watch, kind: type[torch.optim.Optimizer]):
    """Only its backward pass is not: dynamo leaves that to Python, and compiles none of what we do around it."""
    model, moves = mlp(6, 10, 4), list[float]()
    optimizer = kind(model.parameters(), lr=torch.tensor(RATE))

    @torch.compile(backend="eager")
    def step(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss

    with watch() as w:
        for number in range(6):
            before = first(model).detach().clone()
            step(*data(number))
            moves.append(float((first(model).detach() - before).norm()))
    np.testing.assert_allclose(w.run.series("update_norm", "0.weight"), moves, rtol=1e-3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_step_that_nobody_can_see_into_is_said(watch):
    dynamo = pytest.importorskip("torch._dynamo")
    if not hasattr(dynamo.config, "trace_autograd_ops"):
        pytest.skip("this torch cannot")
    model = mlp(6, 10, 4)

    def gradients(inputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(cross_entropy(model(inputs), labels), list(model.parameters()))

    with dynamo.config.patch(trace_autograd_ops=True), watch(model) as w:
        compiled = torch.compile(gradients, backend="aot_eager", fullgraph=True)
        for number in range(6):
            for parameter, gradient in zip(model.parameters(), compiled(*data(number))):
                parameter.data -= RATE * gradient
    assert not len(w.run.steps)
    said = "neither a backward pass nor a step of an optimizer was seen: what is compiled whole is hidden"
    assert said in w.run.diagnose().coverage.reasons


def once_before_the_optimizer(model: nn.Sequential) -> Iterator[torch.optim.Optimizer]:
    """The first gradients are inspected, then the model is initialised anew."""
    cross_entropy(model(data(0)[0]), data(0)[1]).backward()
    for module in model:
        if isinstance(module, nn.Linear):
            module.reset_parameters()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(6):
        yield optimizer


def averaged_and_clipped(model: nn.Sequential) -> Iterator[torch.optim.Optimizer]:
    optimizer, average = torch.optim.SGD(model.parameters(), lr=RATE), copy.deepcopy(model)
    for _ in range(6):
        yield optimizer
        with torch.no_grad():
            for mean, parameter in zip(average.parameters(), model.parameters()):
                mean.lerp_(parameter, 0.1)
                parameter.clamp_(-0.5, 0.5)


def after_two_inspections(model: nn.Sequential) -> Iterator[torch.optim.Optimizer]:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for step in range(6):
        for _ in range(2):
            model.zero_grad()
            cross_entropy(model(data(step)[0]), data(step)[1]).backward()
        yield optimizer


def with_inner_loops(model: nn.Sequential) -> Iterator[torch.optim.Optimizer]:
    """A copy is adapted manually; its gradients then become those of the model."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for step in range(6):
        learner = copy.deepcopy(model)
        for inner in range(3):
            loss = cross_entropy(learner(data(10 * step + inner)[0]), data(10 * step + inner)[1])
            with torch.no_grad():
                for parameter, gradient in zip(
                    learner.parameters(), torch.autograd.grad(loss, [*learner.parameters()])
                ):
                    parameter -= RATE * gradient
        yield optimizer


@pytest.mark.parametrize(
    "program", [once_before_the_optimizer, averaged_and_clipped, after_two_inspections, with_inner_loops],
    ids=lambda program: program.__name__,
)  # fmt: skip
def test_an_optimizer_that_steps_decides_what_a_step_is(watch, program):
    model = mlp(6, 10, 4)
    norms: list[float] = []
    with watch(None) as w:
        for step, optimizer in enumerate(program(model)):
            inputs, labels = data(step)
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            norms.append(float(gradient(first(model)).norm()))
            optimizer.step()
    run = w.run
    assert len(run.steps) == 6
    path = next(layer.path for layer in run.layers if layer.path.endswith("0.weight"))
    np.testing.assert_allclose(run.series("gradient_norm", path)[1:], norms[1:], rtol=1e-5)


def test_an_optimizer_that_comes_later_takes_over(watch):
    model = mlp(6, 10, 4)
    optimizer = None
    with watch(None) as w:
        for step in range(12):
            inputs, labels = data(step)
            model.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            if step < 6:
                in_place(list(model.parameters()))
            else:
                optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=RATE)
                optimizer.step()
    assert w.run.steps.tolist() == list(range(12))
    assert np.isfinite(w.run.series("update_norm", "0.weight")).all()


def test_weights_in_a_flat_dictionary_of_paths(watch):
    """As Keras keeps them on torch, whose optimizers are no optimizers of torch's."""
    weights = {"net/dense/kernel": torch.randn(6, 10) / 3, "net/dense/bias": torch.zeros(10)}
    weights |= {"net/dense_1/kernel": torch.randn(10, 4) / 3, "net/dense_1/bias": torch.zeros(4)}
    model = nn.ParameterDict({path: nn.Parameter(one) for path, one in sorted(weights.items())})
    with watch(None) as w:
        for step in range(6):
            inputs, labels = data(step)
            model.zero_grad()
            hidden = torch.relu(inputs @ model["net/dense/kernel"] + model["net/dense/bias"])
            cross_entropy(hidden @ model["net/dense_1/kernel"] + model["net/dense_1/bias"], labels).backward()
            all_at_once(list(model.parameters()))
    run = w.run
    assert len(run.steps) == 6
    assert {layer.path for layer in run.layers if not layer.is_module} == {path.replace("/", ".") for path in weights}
    assert run.graph.edges


Program = Callable[[nn.Sequential, torch.optim.Optimizer, int], tuple[float, int]]  # → loss and passes of one step


def differentiate(model: nn.Sequential, step: int) -> float:
    loss = cross_entropy(model(data(step)[0]), data(step)[1])
    loss.backward()
    return loss.item()


def perturbed(model: nn.Sequential, optimizer: torch.optim.Optimizer, step: int) -> tuple[float, int]:
    """The gradient is taken a little farther up the hill, as sharpness-aware minimisation does."""
    optimizer.zero_grad()
    first_loss, moved = differentiate(model, step), [0.05 * gradient(parameter) for parameter in model.parameters()]
    with torch.no_grad():
        for parameter, change in zip(model.parameters(), moved):
            parameter += change
    optimizer.zero_grad()
    loss = first_loss + differentiate(model, step)
    with torch.no_grad():
        for parameter, change in zip(model.parameters(), moved):
            parameter -= change
    return loss, 2


def clipped_after_every_micro_batch(
    model: nn.Sequential, optimizer: torch.optim.Optimizer, step: int
) -> tuple[float, int]:
    optimizer.zero_grad()
    loss = 0.0
    for part in range(4):
        loss += differentiate(model, 4 * step + part)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.2, 0.2)
    return loss, 4


def adapted_in_place(model: nn.Sequential, optimizer: torch.optim.Optimizer, step: int) -> tuple[float, int]:
    """Meta-learning of the first order: the model itself takes a few steps, and is set back."""
    before, loss = [parameter.detach().clone() for parameter in model.parameters()], 0.0
    for inner in range(6):
        optimizer.zero_grad()
        loss += differentiate(model, 10 * step + inner)
        if inner < 5:
            in_place(list(model.parameters()))
    with torch.no_grad():
        for parameter, old in zip(model.parameters(), before):
            parameter.copy_(old)
    return loss, 6


@pytest.mark.parametrize("every", [1, 5])
@pytest.mark.parametrize(
    "program", [perturbed, clipped_after_every_micro_batch, adapted_in_place], ids=lambda program: program.__name__
)
def test_what_moves_weights_before_the_first_step_of_an_optimizer_is_part_of_it(watch, program: Program, every: int):
    model = mlp(6, 10, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    book: list[tuple[float, int]] = []
    norms: list[float] = []
    with watch(None, every=every) as w:
        for step in range(6):
            book.append(program(model, optimizer, step))
            norms.append(float(gradient(first(model)).norm()))
            optimizer.step()
    run = w.run
    assert run.steps.tolist() == list(range(6))
    np.testing.assert_allclose(run.scalars("loss"), [loss for loss, _ in book], rtol=1e-5)
    assert run.scalars("backward_count").tolist() == [count for _, count in book]
    np.testing.assert_allclose(run.series("gradient_norm", "0.weight")[::every], norms[::every], rtol=1e-5)
    assert not np.nan_to_num(run.series("gradient_carried", "0.weight")).any()
    assert not [finding for finding in w.findings if finding.code in ("OPT001", "GRD007")]


def single_samples(model: nn.Sequential, step: int) -> None:
    inputs, labels = data(step)
    for one, label in zip(inputs, labels):
        torch.autograd.grad(cross_entropy(model(one[None]), label[None]), list(model.parameters()))


def of_a_function(model: nn.Sequential, step: int) -> None:
    inputs, labels = data(step)
    torch.func.grad(lambda weights: cross_entropy(functional_call(model, weights, (inputs,)), labels))(
        dict(model.named_parameters())
    )


@pytest.mark.parametrize("look", [single_samples, of_a_function], ids=lambda look: look.__name__)
def test_gradients_that_are_taken_beside_a_backward_pass_are_of_another_loss(watch, look):
    model = mlp(6, 10, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses: list[float] = []
    with watch(None) as w:
        for step in range(6):
            look(model, step)
            optimizer.zero_grad()
            losses.append(differentiate(model, step))
            look(model, step)
            optimizer.step()
    np.testing.assert_allclose(w.run.scalars("loss"), losses, rtol=1e-6)
    assert (w.run.scalars("backward_count") == 1).all()


@pytest.mark.parametrize("are_kept", [True, False])
def test_another_model_of_a_loop_without_an_optimizer(watch, are_kept: bool):
    kept_models: list[nn.Module] = []
    losses: list[float] = []
    with watch(None) as w:
        for _ in range(2):
            model = mlp(6, 10, 4)
            if are_kept:
                kept_models.append(model)
            for step in range(40):
                model.zero_grad()
                losses.append(differentiate(model, step))
                in_place(list(model.parameters()))
    run = w.run
    assert len(run.steps) >= 65
    paths = [layer.path for layer in run.layers if layer.path.endswith("0.weight")]
    assert len(paths) == 2
    moved = np.isfinite(np.array([run.series("update_norm", path) for path in paths]))
    assert moved.sum(axis=1).min() >= 25
    assert np.isin(run.scalars("loss").round(5), np.round(losses, 5)).all()  # none is the sum of several


def test_all_weights_of_no_model_are_watched_when_they_are_made_anew(watch):
    with watch(None) as w:
        for _ in range(2):
            weight, bias = torch.randn(6, 4, requires_grad=True), torch.zeros(4, requires_grad=True)
            for step in range(20):
                inputs, labels = data(step)
                weight.grad = bias.grad = None
                cross_entropy(inputs @ weight + bias, labels).backward()
                with torch.no_grad():
                    for parameter in (weight, bias):  # which keeps the last one a little longer
                        parameter -= RATE * gradient(parameter)
    for name in ("weight", "bias"):
        assert np.isfinite(w.run.series("gradient_norm", name)).sum() >= 35
