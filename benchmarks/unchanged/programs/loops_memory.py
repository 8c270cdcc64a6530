"""Ways to train with torch alone: what is recomputed, moved, scaled, of other types."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from benchmarks.unchanged.loop_parts import classify, conv, mlp, rows
from benchmarks.unchanged.program import STEPS, Group, fit

GROUP = Group("loops")


def _checkpointed(reentrant: bool) -> object:
    parts = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.3)) for _ in range(3))

    def loss() -> Tensor:
        x = rows().requires_grad_()
        for part in parts:
            x = checkpoint(part, x, use_reentrant=reentrant)
        return x.square().mean()

    return fit(parts, loss)


GROUP.add("checkpointing-reentrant", lambda: _checkpointed(True))
GROUP.add("checkpointing", lambda: _checkpointed(False))


@GROUP.program()
def checkpointing_nested_and_sequential() -> object:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.GELU()) for _ in range(4)))

    def inner(x: Tensor) -> Tensor:
        return checkpoint_sequential(model, 2, x, use_reentrant=False)

    return fit(model, lambda: checkpoint(inner, rows().requires_grad_(), use_reentrant=False).square().mean())


@GROUP.program()
def saved_tensors_packed_by_the_user() -> object:
    model, packed = mlp(8, 16, 4), []

    def pack(x: Tensor) -> Tensor:
        packed.append(tuple(x.shape))
        return x.clone()

    def loss() -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            return classify(model)

    return fit(model, loss), packed


@GROUP.program()
def saved_tensors_on_the_host() -> object:
    model = conv()

    def loss() -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            return model(torch.randn(4, 3, 12, 12)).square().mean()

    model(torch.randn(4, 3, 12, 12))
    return fit(model, loss)


@GROUP.program()
def autocast_to_bfloat16() -> object:
    model = conv()
    model(torch.randn(4, 3, 12, 12))

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(torch.randn(4, 3, 12, 12)).float().square().mean()

    return fit(model, loss)


def _scaled(skipping: bool) -> object:
    model = mlp(8, 16, 4)
    optimizer = Adam(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    scales = []
    for step in range(STEPS + 2 * skipping):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = classify(model)
        scaler.scale(loss * (float("inf") if skipping and step in (2, 5) else 1.0)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return model, optimizer, scales, scaler.state_dict()


GROUP.add("gradient-scaler", lambda: _scaled(False))
GROUP.add("gradient-scaler-that-skips", lambda: _scaled(True))


@GROUP.program()
def weights_of_many_types() -> object:
    models = [mlp(8, 8, 4).to(dtype) for dtype in (torch.float64, torch.bfloat16, torch.float16)]
    optimizer = SGD([p for m in models for p in m.parameters()], 0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        sum(m(rows().to(m[0].weight.dtype)).float().square().mean() for m in models).backward()  # pyright: ignore
        optimizer.step()
    return models, optimizer


@GROUP.program()
def complex_weights() -> object:
    model = nn.Sequential(nn.Linear(8, 8, dtype=torch.complex64), nn.Linear(8, 4, dtype=torch.complex64))
    return fit(model, lambda: model(torch.randn(16, 8, dtype=torch.complex64)).abs().square().mean())


@GROUP.program()
def frozen_integers_beside_an_adapter() -> object:
    class Quantised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randint(-127, 127, (16, 8), dtype=torch.int8), requires_grad=False)
            self.scale = nn.Parameter(torch.rand(16, 1) / 127, requires_grad=False)
            self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 16, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.weight.float() * self.scale).T + self.up(self.down(x))

    model = nn.Sequential(Quantised(), nn.ReLU(), nn.Linear(16, 4))
    trained = [p for p in model.parameters() if p.requires_grad]
    return fit(model, lambda: classify(model), Adam(trained, 1e-2))
