"""Models and loops of every shape: compiled, checkpointed, tied, frozen, late, lazy, sparse, closures, several."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from tests.probe.training import Book, batches, classes, exact, mlp, train
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from undertow.schema import LossKind


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on importing its compiler
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_model(watch, backend):
    class Crossed(nn.Module):
        """Defined in another order than it runs."""

        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(16, 4)
            self.first = nn.Linear(8, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.first(x).relu())

    model = Crossed()
    compiled = torch.compile(model, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(compiled) as w:
        book = Book()
        for step in range(4):
            optimizer.zero_grad()
            classes(4)(compiled(batches(8)(step)), step).backward()
            book.note_gradients(model.named_parameters())
            optimizer.step()
    run = w.run
    ordered = [layer for layer in run.layers.in_execution_order() if not layer.is_module]
    assert ordered == ["first.weight", "first.bias", "last.weight", "last.bias"]
    assert run.graph.source == "call order"
    for name in ordered:
        np.testing.assert_allclose(run.series("gradient_norm", name), book.norms(name), rtol=1e-6)
    assert any("compiled" in reason for reason in run.diagnose().coverage.reasons)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(watch, reentrant):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.a(x).relu()
            h = checkpoint(lambda t: self.b(t).relu(), h, use_reentrant=reentrant)
            return self.c(h)

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, activations=True) as w:
        book = train(model, optimizer, 4, batches(8), classes(4))
    run = w.run
    assert run.scalars("backward_count").tolist() == [1.0] * 4
    for name, _ in model.named_parameters():
        np.testing.assert_allclose(run.series("gradient_norm", name), book.norms(name), rtol=1e-6)
    assert run.series("activation_calls", "b").tolist() == [1.0] * 4
    assert run.scalars("loss_kind").tolist() == [LossKind.CROSS_ENTROPY] * 4


def test_what_is_checkpointed_runs_twice_and_not_once_more_to_be_looked_at(watch):
    calls: list[int] = []

    def inside(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.relu().softmax(-1).exp()

    first, head = nn.Linear(8, 16), nn.Linear(16, 4)
    model = nn.ModuleList([first, head])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, activations=True):
        for step in range(3):
            optimizer.zero_grad()
            out = head(checkpoint(inside, first(batches(8)(step)), use_reentrant=False))
            nn.functional.cross_entropy(out, torch.arange(len(out)) % 4).backward()
            optimizer.step()
    assert len(calls) == 2 * 3


def test_tied_weights(watch):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(12, 8)
            self.mix = nn.Linear(8, 8)
            self.head = nn.Linear(8, 12, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.mix(self.embed(tokens)))

    model = Tied()
    optimizer = torch.optim.Adam(model.parameters())
    tokens = torch.arange(16) % 12
    with watch(model) as w:
        book = train(
            model, optimizer, 4, lambda step: tokens, lambda out, step: nn.functional.cross_entropy(out, tokens)
        )
    run = w.run
    assert [x for x in run.layers if not x.is_module] == ["embed.weight", "mix.weight", "mix.bias"]
    assert run.layers["embed.weight"].shared_with == ("head.weight",)
    np.testing.assert_allclose(run.series("gradient_norm", "head.weight"), book.norms("embed.weight"), rtol=1e-6)
    paths = [node.path for node in run.graph.nodes if not node.is_merge]
    assert paths == ["embed", "mix", "head"]
    assert run.graph.edges == ((0, 1), (1, 2))


def test_frozen_then_unfrozen(watch):
    model = mlp(8, 16, 16, 4)
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as w:
        book = Book()
        for step in range(8):
            if step == 4:
                model[0].requires_grad_(True)
            optimizer.zero_grad()
            classes(4)(model(batches(8)(step)), step).backward()
            book.note_gradients(model.named_parameters())
            optimizer.step()
    run = w.run
    assert run.series("gradient_state", "0.weight").tolist() == [2.0] * 4 + [0.0] * 4
    np.testing.assert_allclose(run.series("gradient_norm", "0.weight"), book.norms("0.weight"), rtol=1e-6)
    assert [x for x in run.layers.in_execution_order() if x.endswith("weight")] == ["0.weight", "2.weight", "4.weight"]
    assert not [f for f in w.findings if f.severity.is_alarm]


def test_late_added_parameters(watch):
    model = nn.Sequential(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as w:
        book = Book()
        for step in range(6):
            if step == 3:
                model.append(nn.Linear(8, 4))
                optimizer.add_param_group({"params": model[1].parameters(), "lr": 0.01})
            optimizer.zero_grad()
            model(batches(8)(step)).square().mean().backward()
            book.note_gradients(model.named_parameters())
            optimizer.step()
    run = w.run
    assert [x for x in run.layers.in_execution_order() if x.endswith("weight")] == ["0.weight", "1.weight"]
    np.testing.assert_allclose(run.series("gradient_norm", "0.weight"), book.norms("0.weight"), rtol=1e-6)
    late = book.norms("1.weight")
    np.testing.assert_allclose(run.series("gradient_norm", "1.weight"), late, rtol=1e-6)
    np.testing.assert_allclose(run.scalars("lr_1")[3:], 0.01)


def test_lazily_initialised(watch):
    model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(4))
    with watch(model) as w:
        model(batches(8)(0))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        book = train(model, optimizer, 3, batches(8), classes(4))
    np.testing.assert_allclose(w.run.series("gradient_norm", "0.weight"), book.norms("0.weight"), rtol=1e-6)


def test_no_gradient_and_no_optimizer(watch):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.cut, self.forgotten = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.forgotten(self.used(x) + self.cut(x).detach())

    model = Model()
    optimizer = torch.optim.SGD([*model.used.parameters(), *model.cut.parameters()], lr=0.1)
    with watch(model) as w:
        for step in range(24):
            optimizer.zero_grad()
            classes(4)(model(batches(8)(step)), step).backward()
            optimizer.step()
    run = w.run
    assert (run.series("gradient_state", "cut.weight") == 1).all()
    assert np.isnan(run.series("gradient_norm", "cut.weight")).all()
    assert (run.series("gradient_optimizer", "forgotten.weight") == -1).all()
    assert (run.series("gradient_optimizer", "used.weight") == 0).all()
    codes = {f.code: f.layers for f in w.findings if f.severity.is_alarm}
    assert set(codes) == {"GRD003", "UPD003"}
    assert set(codes["GRD003"]) == {"cut.weight", "cut.bias"}
    assert set(codes["UPD003"]) == {"forgotten.weight", "forgotten.bias"}


def test_alternating_optimizers_make_a_step_each(watch):
    torch.manual_seed(1)
    generator, critic = mlp(4, 16, 6), mlp(6, 16, 1)
    g_step = torch.optim.Adam(generator.parameters(), lr=1e-3)
    c_step = torch.optim.Adam(critic.parameters(), lr=2e-3)
    truth: dict[str, list[float]] = {"generator.0.weight": [], "critic.0.weight": []}
    losses: list[float] = []
    score = nn.functional.binary_cross_entropy_with_logits
    with watch(None) as w:
        for step in range(5):
            noise = batches(4)(step)
            c_step.zero_grad()
            real = score(critic(batches(6, seed=3)(step)), torch.ones(16, 1))
            fake = score(critic(generator(noise).detach()), torch.zeros(16, 1))
            (real + fake).backward()
            losses.append(float((real + fake).detach()))
            truth["critic.0.weight"] += [float(critic[0].weight.grad.norm()), np.nan]
            c_step.step()
            g_step.zero_grad()
            loss = score(critic(generator(noise)), torch.ones(16, 1))
            loss.backward()
            losses.append(float(loss.detach()))
            truth["generator.0.weight"] += [np.nan, float(generator[0].weight.grad.norm())]
            g_step.step()
    run = w.run
    assert run.steps.tolist() == list(range(10))
    np.testing.assert_allclose(run.scalars("loss"), losses, rtol=1e-6)
    for name, norms in truth.items():
        np.testing.assert_allclose(run.series("gradient_norm", name), norms, rtol=1e-5)
    assert np.nanmax(run.matrix("gradient_carried")) == 0
    np.testing.assert_allclose(run.scalars("lr"), [2e-3, 1e-3] * 5)
    assert not [f for f in w.findings if f.severity.is_alarm]


def test_optimizers_without_a_backward_between_share_a_step(watch):
    model = mlp(8, 16, 4)
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.Adam(model[2].parameters(), lr=0.01)
    book = Book()
    with watch(model) as w:
        for step in range(4):
            model.zero_grad()
            classes(4)(model(batches(8)(step)), step).backward()
            book.note_gradients(model.named_parameters())
            book.note_before(model.named_parameters())
            first.step()
            second.step()
            book.note_after(model.named_parameters())
    run = w.run
    assert run.steps.tolist() == list(range(4))
    for name, _ in model.named_parameters():
        np.testing.assert_allclose(run.series("gradient_norm", name), book.norms(name), rtol=1e-6)
        np.testing.assert_allclose(run.series("update_ratio", name), book.update_ratios(name), rtol=1e-3)
    assert run.series("gradient_optimizer", "2.weight").tolist() == [1.0] * 4


def test_lbfgs_closure(watch):
    torch.manual_seed(3)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)
    x, y = batches(6)(0), torch.randn(16, 1)
    firsts: list[tuple[float, float]] = []
    with watch(model) as w:
        for _ in range(4):
            calls: list[tuple[float, float]] = []

            def closure(calls: list[tuple[float, float]] = calls) -> torch.Tensor:
                optimizer.zero_grad()
                loss = (model(x) - y).square().mean()
                loss.backward()
                calls.append((float(loss.detach()), float(model.weight.grad.norm())))
                return loss

            optimizer.step(closure)
            firsts.append(calls[0])
            assert len(calls) > 1
    run = w.run
    assert run.steps.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(run.scalars("loss"), [loss for loss, _ in firsts], rtol=1e-6)
    np.testing.assert_allclose(run.series("gradient_norm", "weight"), [norm for _, norm in firsts], rtol=1e-5)
    assert not [f for f in w.findings if f.severity.is_alarm]


@pytest.mark.parametrize("by_name", [False, True])
def test_a_closure_may_clip_what_its_backward_pass_gave(watch, by_name):
    """As in loops where the optimizer is handed the whole step."""
    torch.manual_seed(3)
    model = nn.Linear(6, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = batches(6)(0), torch.randn(16, 1)
    norms: list[float] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.01)))
        return loss

    with watch(model) as w:
        for _ in range(4):
            loss = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
            assert float(loss.detach()) > 0
    run = w.run
    np.testing.assert_allclose(run.series("gradient_norm", "weight"), norms, rtol=1e-5)
    np.testing.assert_allclose(run.series("stepped_gradient_norm", "weight"), 0.01, rtol=1e-3)
    np.testing.assert_allclose(run.scalars("clip_coefficient"), 0.01 / np.array(norms), rtol=1e-3)


def test_sparse_gradients(watch):
    model = nn.Sequential(nn.EmbeddingBag(500, 16, sparse=True, mode="mean"), nn.Linear(16, 4))
    sparse = torch.optim.SparseAdam(model[0].parameters(), lr=0.01)
    dense = torch.optim.SGD(model[1].parameters(), lr=0.1)
    book = Book()
    with watch(model) as w:
        for step in range(5):
            model.zero_grad()
            tokens = torch.randint(0, 500, (16, 3), generator=torch.Generator().manual_seed(step))
            classes(4)(model(tokens), step).backward()
            book.note_gradients(model.named_parameters())
            sparse.step()
            dense.step()
    run = w.run
    np.testing.assert_allclose(run.series("gradient_norm", "0.weight"), book.norms("0.weight"), rtol=1e-5)
    zeros = [np.mean(entry["0.weight"] == 0) for entry in book.gradients]
    np.testing.assert_allclose(run.series("gradient_zero_fraction", "0.weight"), zeros, rtol=1e-6)
    assert not [f for f in w.findings if f.severity.is_alarm]


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_parametrizations(watch, wrap):
    model = nn.Sequential(wrap(nn.Linear(8, 16)), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as w:
        book = train(model, optimizer, 4, batches(8), classes(4))
    for name, _ in model.named_parameters():
        np.testing.assert_allclose(w.run.series("gradient_norm", name), book.norms(name), rtol=1e-6)


def test_functional_loop_without_a_module(watch):
    weights = {"w": torch.randn(4, 8, requires_grad=True), "b": torch.zeros(4, requires_grad=True)}
    optimizer = torch.optim.Adam(
        [{"params": [weights["w"]], "name": "matrix"}, {"params": [weights["b"]], "lr": 0.1}], lr=0.01
    )

    def loss_of(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return (x @ parameters["w"].T + parameters["b"]).square().mean()

    norms = []
    with watch(None) as w:
        for step in range(4):
            plain = {name: value.detach() for name, value in weights.items()}
            gradients = torch.func.grad(loss_of)(plain, batches(8)(step))
            for name, value in weights.items():
                value.grad = gradients[name]
            norms.append(float(gradients["w"].norm()))
            optimizer.step()
    run = w.run
    assert list(run.layers) == ["matrix.param0", "group1.param0"]
    assert run.steps.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(run.series("gradient_norm", "matrix.param0"), norms, rtol=1e-6)


def test_autograd_grad_loop(watch):
    model = mlp(8, 16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, norms = [], []
    with watch(model) as w:
        for step in range(4):
            loss = classes(4)(model(batches(8)(step)), step)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), gradients):
                parameter.grad = gradient
            losses.append(float(loss.detach()))
            norms.append(float(gradients[0].norm()))
            optimizer.step()
    run = w.run
    np.testing.assert_allclose(run.scalars("loss"), losses, rtol=1e-6)
    np.testing.assert_allclose(run.series("gradient_norm", "0.weight"), norms, rtol=1e-6)
    assert [x for x in run.layers.in_execution_order() if x.endswith("weight")] == ["0.weight", "2.weight"]


def test_optimizer_in_backward(watch):
    model = mlp(8, 16, 4)
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    norms: list[float] = []

    def step_now(parameter: torch.Tensor) -> None:
        if parameter is model[0].weight:
            norms.append(float(parameter.grad.norm()))
        optimizers[parameter].step()
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step_now)
    with watch(model) as w:
        for step in range(4):
            classes(4)(model(batches(8)(step)), step).backward()
    run = w.run
    assert run.steps.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(run.series("gradient_norm", "0.weight"), norms, rtol=1e-6)
    assert (run.series("gradient_state", "2.bias") == 0).all()
    assert (run.series("update_norm", "2.weight") > 0).all()
    assert not [f for f in w.findings if f.severity.is_alarm]


def test_copies_and_pickles_of_a_watched_model_are_clean(watch):
    model = mlp(8, 16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as w:
        train(model, optimizer, 2, batches(8), classes(4))
        twin = copy.deepcopy(model)
        other = pickle.loads(pickle.dumps(model))
        twin_optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
        train(twin, twin_optimizer, 3, batches(8), classes(4))
        train(model, optimizer, 1, batches(8), classes(4))
    assert w.run.steps.tolist() == [0, 1, 2]  # the copy is not watched
    assert torch.equal(other[0].weight, pickle.loads(pickle.dumps(twin))[0].weight) is False
    for copied in (twin, other):
        for module in copied.modules():
            assert not module._forward_hooks
            assert not module._forward_pre_hooks
            assert not module._backward_hooks


def test_attaching_again_closes_the_earlier_watch(watch):
    model = mlp(8, 16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = watch(model)
    train(model, optimizer, 2, batches(8), classes(4))
    second = watch(model)
    train(model, optimizer, 3, batches(8), classes(4))
    second.close()
    assert first.closed
    assert first.run.steps.tolist() == [0, 1]
    assert second.run.steps.tolist() == [0, 1, 2]


def test_residual_branches_are_in_the_graph(watch):
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.inner(x).relu()

    model = nn.Sequential(nn.Linear(4, 8), Block(), Block(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model) as w:
        train(model, optimizer, 2, batches(4), classes(3))
    graph = w.run.graph
    label = {node.id: node.path or f"+{node.id}" for node in graph.nodes}
    edges = {(label[a], label[b]) for a, b in graph.edges}
    merges = [label[node.id] for node in graph.nodes if node.is_merge]
    assert len(merges) == 2
    one, two = merges
    assert edges == {
        ("0", "1.inner"), ("0", one), ("1.inner", one), (one, "2.inner"), (one, two), ("2.inner", two), (two, "3"),
    }  # fmt: skip
    order = [layer for layer in w.run.layers.in_execution_order() if layer.is_module]
    assert order == ["0", "1.inner", "1", "2.inner", "2", "3"]


def test_activations(watch):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    with torch.no_grad():
        model[0].bias[:5] = -100.0  # five units of sixteen are dead
        model[2].weight *= 30
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    truth: list[dict[str, np.ndarray]] = []
    gradients: list[float] = []
    with watch(model, activations=True) as w:
        for step in range(3):
            optimizer.zero_grad()
            x, outputs = batches(8)(step), {}
            h = x
            for name, module in model.named_children():
                h = module(h)
                outputs[name] = exact(h)
                if name == "2":
                    h.retain_grad()
                    kept = h
            classes(4)(h, step).backward()
            gradients.append(float(kept.grad.norm()))
            truth.append(outputs)
            optimizer.step()
    run = w.run
    for name in ("0", "1", "2", "3", "4"):
        np.testing.assert_allclose(
            run.series("activation_mean", name), [t[name].mean() for t in truth], rtol=1e-4, atol=1e-6
        )
        np.testing.assert_allclose(run.series("activation_std", name), [t[name].std() for t in truth], rtol=1e-5)
        largest = [np.abs(t[name]).max() for t in truth]
        np.testing.assert_allclose(run.series("activation_max_abs", name), largest, rtol=1e-6)
    zeros = [np.mean(t["1"] == 0) for t in truth]
    np.testing.assert_allclose(run.series("activation_zero_fraction", "1"), zeros, rtol=1e-6)
    np.testing.assert_allclose(run.series("activation_dead_fraction", "1"), 5 / 16)
    flat = [np.mean(np.abs(t["3"]) >= 0.99) for t in truth]
    np.testing.assert_allclose(run.series("activation_saturated_fraction", "3"), flat, rtol=1e-6)
    np.testing.assert_allclose(run.series("output_gradient_norm", "2"), gradients, rtol=1e-5)


def test_inplace_activations_and_validation_passes(watch):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Dropout(0.1), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, activations=True) as w:
        for _step in range(3):
            train(model, optimizer, 1, batches(8), classes(4))
            model.eval()
            with torch.no_grad():
                model(torch.full((4, 8), 1e6))
            model.train()
    assert w.run.series("activation_calls", "0").tolist() == [1.0, 1.0, 1.0]
    assert np.nanmax(w.run.series("activation_max_abs", "0")) < 1e3


def test_the_module_where_a_loss_turns_bad_is_named(watch):
    """Also when it has no parameters: the operation alone would point at the layer before it."""

    class Standardise(nn.Module):
        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return h / h.var(0).sqrt()

    model = nn.Sequential(nn.Linear(8, 16), nn.Sequential(nn.Identity(), Standardise()), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, activations=True) as w:
        for step in range(6):
            if step == 4:
                with torch.no_grad():
                    model[0].weight[0] = 0.0
            optimizer.zero_grad()
            classes(4)(model(batches(8)(step)), step).backward()
            optimizer.step()
    (origin,) = [event for event in w.run.events if event["kind"] == "first_nonfinite"]
    assert (origin["step"], origin["layer"], origin["operation"]) == (4, "1.1", "Div")
    assert w.findings[0].layers[0] == "1.1"


def test_a_cast_that_overflows_belongs_to_the_layer_it_is_made_for(watch):
    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.narrow, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = (1e7 * self.first(x)).half()
            h = nn.functional.linear(h, self.narrow.weight.half(), self.narrow.bias.half())
            return self.last(h.float())

    model = Narrow()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model) as w:
        classes(4)(model(batches(8)(0)), 0).backward()
        optimizer.step()
    (origin,) = [event for event in w.run.events if event["kind"] == "first_nonfinite"]
    assert (origin["layer"], origin["operation"]) == ("narrow", "Addmm")


def test_the_layer_before_an_operation_that_turns_bad_is_named(watch):
    """Not the layer that receives it, though its output is the first one that is seen to be bad."""

    class Directions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.first(x)
            return self.second(h / h.norm(dim=1, keepdim=True))

    model = Directions()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, activations=True) as w:
        for step in range(4):
            if step == 3:
                with torch.no_grad():
                    model.first.weight.zero_()
                    model.first.bias.zero_()
            optimizer.zero_grad()
            classes(4)(model(batches(8)(step)), step).backward()
            optimizer.step()
    (origin,) = [event for event in w.run.events if event["kind"] == "first_nonfinite"]
    assert (origin["step"], origin["layer"], origin["operation"]) == (3, "first", "Div")
