"""Ways to train with torch alone: compiled, traced, distributed."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import SGD

from benchmarks.unchanged.loop_parts import classes, classify, mlp, rows
from benchmarks.unchanged.program import STEPS, Group, fit

GROUP = Group("loops")


def _compiled(backend: str, whole_step: bool = False) -> object:
    model = mlp(8, 16, 4)
    optimizer = SGD(model.parameters(), 0.1)
    if not whole_step:
        fast = torch.compile(model, backend=backend)
        return fit(model, lambda: classify(fast), optimizer)

    @torch.compile(backend=backend)
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    return fit(model, lambda: forward(rows(), classes()), optimizer)


for backend in ("eager", "aot_eager", "inductor"):
    GROUP.add(f"compiled-with-{backend}", lambda backend=backend: _compiled(backend))
GROUP.add("compiled-loss-function", lambda: _compiled("aot_eager", whole_step=True))


@GROUP.program()
def compiled_with_graph_breaks_and_new_shapes() -> object:
    class Breaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            if float(h.sum()) > 0:
                h = h * 2
            return self.second(h.relu())

    model = Breaks()
    fast, sizes = torch.compile(model, backend="aot_eager"), iter(range(4, 100))
    return fit(model, lambda: fast(torch.randn(next(sizes), 8)).square().mean())


@GROUP.program(steps=0)
def compiled_optimizer_step() -> object:
    """Nothing of a step that is compiled can be seen without becoming part of it."""
    model = mlp(8, 16, 4)
    optimizer = SGD(model.parameters(), torch.tensor(0.1))
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(STEPS):
        optimizer.zero_grad()
        classify(model).backward()
        step()
    return model, optimizer


@GROUP.program()
def scripted_and_traced() -> object:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = nn.ModuleList([torch.jit.script(mlp(8, 16, 4)), torch.jit.trace(mlp(8, 16, 4), rows())])
    return fit(models, lambda: classify(models[0]) + classify(models[1]))  # pyright: ignore


@GROUP.program()
def symbolically_traced_and_exported() -> object:
    model = torch.fx.symbolic_trace(mlp(8, 16, 4))
    exported = torch.export.export(mlp(8, 16, 4), (rows(),)).module()
    both = nn.ModuleList([model, exported])
    return fit(both, lambda: classify(model) + classify(exported))


@GROUP.program()
def one_process_of_distributed_data_parallel() -> object:
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(mlp(8, 16, 4))
        return fit(model, lambda: classify(model))
    finally:
        dist.destroy_process_group()


@GROUP.program()
def one_process_of_fully_sharded_data_parallel() -> object:
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = mlp(8, 16, 4)
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
        model, _, losses = fit(model, lambda: classify(model))
        return losses, {name: p.full_tensor() for name, p in model.named_parameters()}  # pyright: ignore
    finally:
        dist.destroy_process_group()
