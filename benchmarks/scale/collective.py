"""What an all-reduce of a frame's block would cost beside the messages that are sent instead: four processes, gloo.

    python -m benchmarks.scale.collective

Prints, for each of both, the bytes that leave a rank per frame, and the processor time of the first rank and of the
others (median of the frames; the clock is not asked, so that other work on the machine matters little).
"""

from __future__ import annotations

import sys
import time
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from benchmarks.scale.costs import part, roster, take
from undertow.probe.distributed.merging import Gathered
from undertow.probe.distributed.rank_layout import RankLayout
from undertow.probe.distributed.rank_messages import encode
from undertow.probe.distributed.rendezvous import Link
from undertow.schema import LayerTable

RANKS, LAYERS, FRAMES, PORT = 4, 500, 20, 29_461


def main() -> None:
    # A rank and its own process, because gloo works in threads: their time counts, too.
    spawn(_rank, nprocs=RANKS)


def _rank(rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{PORT}", rank=rank, world_size=RANKS)
    sent = _messages(rank)
    reduced = _all_reduce(rank)
    everyone: list[list[float]] = [[] for _ in range(RANKS)]
    dist.all_gather_object(everyone, [*sent, *reduced])
    if rank == 0:
        print(f"{RANKS} processes, {LAYERS} sharded layers, one kind of reading, a frame:")
        print(f"  python {sys.version.split()[0]}, torch {torch.__version__}")
        for place, name in enumerate(("messages to the first rank", "an all-reduce of the block")):
            size, times = everyone[1][2 * place], [one[2 * place + 1] for one in everyone]
            print(
                f"  {name:28s} {size / 1e6:6.2f} MB from a rank   {times[0] * 1e3:6.1f} ms of the first rank's"
                f" processor, {median(times[1:]) * 1e3:6.1f} ms of another's"
            )
    dist.destroy_process_group()


def _messages(rank: int) -> tuple[float, float]:
    """Bytes, and seconds of a frame: encoded, sent, decoded and merged, as in a training."""
    store = dist.distributed_c10d._get_default_store()
    prefix: Any = getattr(dist, "PrefixStore")  # noqa: B009 (torch exports it without its type)
    mine = part(rank, LAYERS, RANKS)
    size, times = len(encode(mine)), list[float]()
    if rank:
        links = [Link(prefix(f"link/{rank}", store), 0, leads=False)]
    else:
        links = [Link(prefix(f"link/{other}", store), other, leads=True) for other in range(1, RANKS)]
    rank_layout = RankLayout(LayerTable())
    for other in range(RANKS):
        rank_layout.enter(roster(other, LAYERS, RANKS))
    for _ in range(FRAMES):
        dist.barrier()
        began = time.process_time()
        if rank:
            links[0].send(encode(mine))
        else:
            gathered = Gathered(rank_layout.holding)
            take(gathered, 0, encode(mine))
            for link in links:
                take(gathered, link.rank, link.receive())
            gathered.reading()
        times.append(time.process_time() - began)
    dist.barrier()
    for link in links:
        link.close()
    return float(size), median(times)


def _all_reduce(rank: int) -> tuple[float, float]:
    """The same numbers summed by everybody for everybody. Minima and maxima would need two more."""
    (measured,) = part(rank, LAYERS, RANKS).kinds["gradients"]
    group = dist.new_group(backend="gloo")
    times: list[float] = []
    assert measured.sketches is not None
    block = torch.from_numpy(np.concatenate([measured.moments.reshape(-1), measured.sketches]))
    for _ in range(FRAMES):
        mine = block.clone()
        dist.barrier()
        began = time.process_time()
        dist.all_reduce(mine, group=group)
        times.append(time.process_time() - began)
    # A ring sends each part of the block once while it is summed, and once more when it is handed out.
    return 2 * (RANKS - 1) / RANKS * block.nbytes, median(times)


if __name__ == "__main__":
    main()
