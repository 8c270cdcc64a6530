"""Small trainings that run in several processes, and the same in one: started by `ranks.py`, one process per rank."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import undertow
from undertow.probe.distributed import rank_tree

STEPS = 6
BATCH = 8


def network(width: int = 40) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.LayerNorm(width), nn.Linear(width, 3))


def batches(steps: int = STEPS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of all ranks together; the same everywhere."""
    source = torch.Generator().manual_seed(5)
    return [
        (torch.randn(BATCH, 12, generator=source), torch.randint(3, (BATCH,), generator=source)) for _ in range(steps)
    ]


def share(batch: torch.Tensor) -> torch.Tensor:
    """This rank's part of a batch; all of it in a process that trains alone."""
    if not dist.is_initialized():
        return batch
    return batch.chunk(dist.get_world_size())[dist.get_rank()]


def fit(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = STEPS) -> None:
    for inputs, labels in batches(steps):
        loss = nn.functional.cross_entropy(model(share(inputs)), share(labels))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


def data_parallel(folder: Path) -> None:
    model = network()
    wrapped = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.01)
    with undertow.watch(wrapped, run_dir=folder, every=1, quiet=True):
        fit(wrapped, optimizer)


def fully_sharded(folder: Path) -> None:
    """Layers of 41 units: shards of unequal sizes, and with four ranks an empty one of the last layer's three rows."""
    model = network(41)
    if dist.is_initialized():
        for part in (model[0], model[3]):
            fully_shard(part)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with undertow.watch(model, run_dir=folder, every=1, quiet=True):
        fit(model, optimizer)


def _flattened(folder: Path, use_orig_params: bool) -> None:
    """The older FSDP: parameters end to end in flat tensors, which are cut wherever the ranks' stretches end."""
    model: nn.Module = network(41)
    if dist.is_initialized():
        here = torch.device("cpu")
        for name in ("0", "3"):
            part = model.get_submodule(name)
            model.set_submodule(name, FullyShardedDataParallel(part, use_orig_params=use_orig_params, device_id=here))
        model = FullyShardedDataParallel(model, use_orig_params=use_orig_params, device_id=here)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with undertow.watch(model, run_dir=folder, every=1, quiet=True):
        for inputs, labels in batches():
            loss = nn.functional.cross_entropy(model(share(inputs)), share(labels))
            optimizer.zero_grad()
            loss.backward()
            if isinstance(model, FullyShardedDataParallel):
                model.clip_grad_norm_(0.5)
            else:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()


def flattened(folder: Path) -> None:
    _flattened(folder, use_orig_params=True)


def flattened_passes(folder: Path) -> None:
    """Two micro-batches a step, of which the first one's gradients stay with their rank until the second."""
    model: nn.Module = network(41)
    if dist.is_initialized():
        model = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with undertow.watch(model, run_dir=folder, every=1, quiet=True):
        for inputs, labels in batches():
            optimizer.zero_grad()
            for place, (some, wanted) in enumerate(zip(inputs.chunk(2), labels.chunk(2), strict=True)):
                alone = place == 0 and isinstance(model, FullyShardedDataParallel)
                with model.no_sync() if alone else nullcontext():
                    (nn.functional.cross_entropy(model(share(some)), share(wanted)) / 2).backward()
            optimizer.step()


def flat_units(folder: Path) -> None:
    _flattened(folder, use_orig_params=False)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(12), nn.Linear(12, 40), nn.Linear(40, 12)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.narrow(nn.functional.gelu(self.wide(self.norm(inputs))))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(12, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs)


def large_scale(folder: Path) -> None:
    """The loop that large trainings are written as: a model without memory that is sharded block by block, filled with
    values, and trained in micro-batches, with a schedule and a norm that is clipped over all shards."""
    with torch.device("meta"):
        model = Stack()
    if dist.is_initialized():
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    model.to_empty(device="cpu")
    for place, parameter in enumerate(model.parameters()):
        whole = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(place)) * 0.2
        local = getattr(parameter, "_local_tensor", parameter)
        rows = whole
        if dist.is_initialized():
            pieces = whole.chunk(dist.get_world_size())
            rows = pieces[dist.get_rank()] if dist.get_rank() < len(pieces) else whole[:0]
        local.data.copy_(rows)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    with undertow.watch(model, run_dir=folder, every=1, quiet=True):
        for inputs, labels in batches():
            optimizer.zero_grad()
            for some, wanted in zip(inputs.chunk(2), labels.chunk(2), strict=True):
                (nn.functional.cross_entropy(model(share(some)), share(wanted)) / 2).backward()
            norm = nn.utils.get_total_norm([one.grad for one in model.parameters() if one.grad is not None])
            norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
            nn.utils.clip_grads_with_norm_(model.parameters(), 0.5, norm, foreach=True)
            optimizer.step()
            schedule.step()


class Meeting(nn.Module):
    """Takes two tensors, so that what `fully_shard` puts around its inputs holds both."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.one(left)) * torch.sigmoid(self.other(right)) + left


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.left, self.right = nn.Linear(12, 16), nn.Linear(12, 16)
        self.meeting = Meeting()
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        met = self.meeting(self.left(inputs), torch.relu(self.right(inputs)))
        return self.head(self.norm(met) + met)


def sharded_branches(folder: Path) -> None:
    model = Branching()
    if dist.is_initialized():
        for part in (model.left, model.meeting, model.head):
            fully_shard(part)
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with undertow.watch(model, run_dir=folder, every=1, quiet=True):
        fit(model, optimizer)


def hybrid_sharded(folder: Path) -> None:
    """Half of the ranks hold shards of one copy, the other half those of another."""
    model = network(41)
    if dist.is_initialized():
        mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("copy", "shard"))
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with undertow.watch(model, run_dir=folder, every=1, quiet=True):
        fit(model, optimizer)


def tensor_parallel(folder: Path) -> None:
    """One layer is cut by rows and the next by columns, as in a transformer; all ranks see the same batch."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 3))
    if dist.is_initialized():
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with undertow.watch(model, run_dir=folder, every=1, quiet=True):
        for inputs, labels in batches():
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def sequence_parallel(folder: Path) -> None:
    """Tensors that every rank holds whole, with gradients that are terms of a sum until somebody adds them."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(12, 40), nn.LayerNorm(40), nn.Linear(40, 4))
    if dist.is_initialized():
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        plan = {
            "0": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "1": SequenceParallel(),
            "2": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        }
        parallelize_module(model, mesh, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with undertow.watch(model, run_dir=folder, every=1, quiet=True):
        for inputs, labels in batches():
            sequence = inputs.reshape(2, 4, 12)
            loss = nn.functional.cross_entropy(model(sequence).reshape(8, 4), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def mixed_mesh(folder: Path) -> None:
    """Layers cut over half of the ranks, and what is left of them sharded over the other dimension of the mesh."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(12, 44), nn.ReLU(), nn.Linear(44, 5))
    rows = slice(None)
    if dist.is_initialized():
        mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor"))
        parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(model, mesh=mesh["data"])
        size = BATCH // mesh["data"].size()
        rows = slice(mesh["data"].get_local_rank() * size, (mesh["data"].get_local_rank() + 1) * size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with undertow.watch(model, run_dir=folder, every=1, quiet=True):
        for inputs, labels in batches():
            loss = nn.functional.cross_entropy(model(inputs[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def _compare_with_unwatched(folder: Path, wrap: Callable[[nn.Module], nn.Module]) -> None:
    """Weights after a watched training are those of one that nobody watches, to the last bit."""
    results: list[list[torch.Tensor]] = []
    for watched in (False, True):
        model = wrap(network())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        with undertow.watch(model, run_dir=folder, quiet=True) if watched else nullcontext():
            fit(model, optimizer, 24)
        results.append([getattr(one, "_local_tensor", one).detach().clone() for one in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def untouched(folder: Path) -> None:
    _compare_with_unwatched(folder, DistributedDataParallel)


def untouched_sharded(folder: Path) -> None:
    """Gradients in another format than weights, too."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

    def shard(model: nn.Module) -> nn.Module:
        fully_shard(model, mp_policy=policy)
        return model

    _compare_with_unwatched(folder, shard)


def untouched_flattened(folder: Path) -> None:
    here = torch.device("cpu")
    _compare_with_unwatched(folder, lambda model: FullyShardedDataParallel(model, use_orig_params=True, device_id=here))


def accumulated(folder: Path) -> None:
    """Two micro-batches a step; only the second one's gradients are exchanged."""
    model = network()
    wrapped = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    with undertow.watch(wrapped, run_dir=folder, every=1, quiet=True):
        for inputs, labels in batches():
            optimizer.zero_grad()
            for place, (some, wanted) in enumerate(zip(inputs.chunk(2), labels.chunk(2), strict=True)):
                alone = place == 0 and isinstance(wrapped, DistributedDataParallel)
                with wrapped.no_sync() if alone else nullcontext():
                    (nn.functional.cross_entropy(wrapped(share(some)), share(wanted)) / 2).backward()
            optimizer.step()


def _sharded_passes(folder: Path, exchanged: bool) -> None:
    """Two micro-batches a step of a sharded model, the first one's gradients averaged over ranks at once, or later."""
    model = network()
    if dist.is_initialized():
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with undertow.watch(model, run_dir=folder, every=1, quiet=True):
        for inputs, labels in batches():
            optimizer.zero_grad()
            for place, (some, wanted) in enumerate(zip(inputs.chunk(2), labels.chunk(2), strict=True)):
                if isinstance(model, FSDPModule):
                    model.set_requires_gradient_sync(exchanged or place == 1)
                (nn.functional.cross_entropy(model(share(some)), share(wanted)) / 2).backward()
            optimizer.step()


def sharded_accumulated(folder: Path) -> None:
    _sharded_passes(folder, exchanged=True)


def sharded_unsynced(folder: Path) -> None:
    _sharded_passes(folder, exchanged=False)


def parted(folder: Path) -> None:
    """Gradients averaged by hand, all but those of one tensor."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with undertow.watch(model, run_dir=folder, every=1, quiet=True):
        for inputs, labels in batches(10):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(share(inputs)), share(labels)).backward()
            for name, parameter in model.named_parameters():
                if name != "3.weight" and parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
            optimizer.step()


def poisoned(folder: Path) -> None:
    """The last rank's data turn NaN."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with undertow.watch(model, run_dir=folder, every=1, quiet=True):
        for step, (inputs, labels) in enumerate(batches(8)):
            mine = share(inputs).clone()
            if step == 5 and dist.get_rank() == dist.get_world_size() - 1:
                mine[0, 0] = float("nan")
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(mine), share(labels)).backward()
            optimizer.step()


def stages(folder: Path) -> None:
    """A model cut into two by hand; both halves have the same names."""
    torch.manual_seed(dist.get_rank())
    first = dist.get_rank() == 0
    model = nn.Sequential(nn.Linear(12, 12), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with undertow.watch(model, run_dir=folder, every=1, quiet=True):
        for inputs, labels in batches():
            optimizer.zero_grad()
            between = torch.zeros(BATCH, 12)
            if first:
                out = model(inputs)
                dist.send(out.detach(), 1)
                dist.recv(between, 1)
                out.backward(between)
            else:
                dist.recv(between, 0)
                between.requires_grad_(True)
                nn.functional.cross_entropy(model(between), labels).backward()
                assert between.grad is not None
                dist.send(between.grad, 0)
            optimizer.step()


class Chain(nn.Module):
    """Of which a stage holds every layer but those of the others."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleDict({str(place): nn.Linear(12, 12) for place in range(4)})

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            inputs = torch.tanh(layer(inputs))
        return inputs


def pipeline(folder: Path) -> None:
    """Two stages and four micro-batches a step, whose gradients torch averages after the last of them."""
    model = Chain()
    schedule = None
    if dist.is_initialized():
        for place in ("2", "3") if dist.get_rank() == 0 else ("0", "1"):
            del model.layers[place]
        stage = PipelineStage(model, dist.get_rank(), 2, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with undertow.watch(model, run_dir=folder, every=1, quiet=True):
        for inputs, _ in batches():
            optimizer.zero_grad()
            if schedule is None:
                nn.functional.mse_loss(model(inputs), inputs).backward()
            elif dist.get_rank() == 0:
                schedule.step(inputs)
            else:
                schedule.step(target=inputs)
            optimizer.step()


def only_the_first(folder: Path) -> None:
    """The usual `if rank == 0` around what only one rank should do."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = undertow.watch(model, run_dir=folder, every=1, quiet=True) if dist.get_rank() == 0 else nullcontext()
    with handle:
        fit(model, optimizer)


def _bereaved(folder: Path, dies: int) -> None:
    """Ranks that train by themselves, the same model on the same data; one of them is killed on its way."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = undertow.watch(model, run_dir=folder, every=1, quiet=False)
    for step, (inputs, labels) in enumerate(batches(40)):
        if step == 20:
            wait_for((folder / "layers.json").exists)  # both ranks have been heard of
            if dist.get_rank() == dies:
                os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        time.sleep(0.02)
    handle.close()
    print("trained to the end", flush=True)
    os._exit(0)  # the process group is broken, and not ours to mend


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)


def first_dies(folder: Path) -> None:
    _bereaved(folder, 0)


def third_dies(folder: Path) -> None:
    _bereaved(folder, 2)


def last_dies(folder: Path) -> None:
    _bereaved(folder, dist.get_world_size() - 1)


TRAININGS = (
    data_parallel, fully_sharded, large_scale, flattened, flattened_passes, flat_units, sharded_branches,
    hybrid_sharded, tensor_parallel, sequence_parallel, accumulated, sharded_accumulated, sharded_unsynced,
    parted, poisoned, stages, pipeline, mixed_mesh, untouched, only_the_first, untouched_sharded,
    untouched_flattened, first_dies, third_dies, last_dies,
)  # fmt: skip
PROGRAMS: dict[str, Callable[[Path], None]] = {one.__name__: one for one in TRAININGS}


def main(folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    if os.environ.get("BRANCHES"):  # as thousands of ranks would
        rank_tree.STAR, rank_tree.WIDTH = 1, int(os.environ["BRANCHES"])
    dist.init_process_group("gloo")
    for name in names:
        PROGRAMS[name](folder / name)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
