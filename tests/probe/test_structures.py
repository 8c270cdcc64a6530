"""Models of every shape: compiled, checkpointed, tied, frozen, late, lazy, sparse, parametrized, copied."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from tests.probe.training import Book, batches, classes, mlp, train
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
