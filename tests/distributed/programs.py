"""Small trainings that run in several processes, and the same in one: started by `ranks.py`, one process per rank."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import undertow

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


PROGRAMS: dict[str, Callable[[Path], None]] = {one.__name__: one for one in (data_parallel, fully_sharded)}


def main(folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in names:
        PROGRAMS[name](folder / name)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
