"""Two looms weave one cloth: data parallel training written out by hand, two copies in one process."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import program

THREADS, PATTERNS = 24, 5


def cloth(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Five weaves with a phase of their own, under noise."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(PATTERNS, (count,), generator=g)
    phase = 6.28 * torch.rand(count, 1, generator=g)
    x = torch.sin(torch.arange(THREADS) * (0.3 + 0.35 * y[:, None]) + phase)
    return x + 0.8 * torch.randn(count, THREADS, generator=g), y


class Weaver(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.warp = nn.Conv1d(1, 16, 7, padding=3)
        self.norm = nn.BatchNorm1d(16)
        self.weft = nn.Conv1d(16, 24, 5, stride=2, padding=2)
        self.norm2 = nn.BatchNorm1d(24)
        self.head = nn.Linear(24, PATTERNS)

    def forward(self, x: Tensor) -> Tensor:
        h = fn.relu(self.norm(self.warp(x[:, None])))
        return self.head(fn.relu(self.norm2(self.weft(h))).amax(-1))


class Looms(nn.Module):
    """Two workers with the same start; each sees its own half of the cloth."""

    def __init__(self) -> None:
        super().__init__()
        first = Weaver()
        self.workers = nn.ModuleList([first, copy.deepcopy(first)])

    @torch.no_grad()
    def average_gradients(self, skip_last_bucket: bool) -> None:
        pairs = list(zip(*(worker.parameters() for worker in self.workers), strict=True))
        if skip_last_bucket:
            pairs = pairs[: len(pairs) // 4 * 4]  # whole buckets of four only
        for a, b in pairs:
            if a.grad is not None and b.grad is not None:
                mean = (a.grad + b.grad) / 2
                a.grad.copy_(mean)
                b.grad.copy_(mean)

    @torch.no_grad()
    def average_statistics(self) -> None:
        for a, b in zip(*(worker.buffers() for worker in self.workers), strict=True):
            if a.is_floating_point():
                mean = (a + b) / 2
                a.copy_(mean)
                b.copy_(mean)

    def apart(self, of: str) -> float:
        a, b = (dict(getattr(worker, f"named_{of}")()) for worker in self.workers)
        return max((a[name].float() - b[name].float()).abs().max().item() for name in a)


@program(steps=140, bites="accuracy")
def twin_looms(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two copies, gradients and statistics averaged in every step, one SGD for each copy."""
    torch.manual_seed(seed)
    x, y = cloth(1024, seed)
    if fault == "looms_statistics_of_their_own":
        order = y.argsort()  # one loom gets the coarse weaves, the other the fine ones
        x, y = x[order], y[order]
    shards = [(x[:512], y[:512]), (x[512:], y[512:])]
    looms = Looms()
    optimizers = [torch.optim.SGD(worker.parameters(), lr=0.05, momentum=0.9) for worker in looms.workers]
    saved: dict[str, Tensor] = {}
    value = 0.0
    for step in range(steps):
        if step == 40:
            saved = copy.deepcopy(looms.workers[1].state_dict())
        if step == 75 and fault == "looms_one_restarts_from_a_backup":
            looms.workers[1].load_state_dict(saved)
        for worker, optimizer, (shard_x, shard_y) in zip(looms.workers, optimizers, shards, strict=True):
            pick = torch.randint(512, (24,))
            optimizer.zero_grad()
            loss = fn.cross_entropy(worker(shard_x[pick]), shard_y[pick])
            loss.backward()
            value = loss.item()
        looms.average_gradients(skip_last_bucket=fault == "looms_last_bucket_not_averaged")
        for optimizer in optimizers:
            optimizer.step()
        if fault != "looms_statistics_of_their_own":
            looms.average_statistics()
    looms.eval()
    test_x, test_y = cloth(500, seed + 600)
    with torch.no_grad():
        accuracy = (looms.workers[0](test_x).argmax(1) == test_y).float().mean().item()
    apart, buffers = looms.apart("parameters"), looms.apart("buffers")
    return {"loss": value, "accuracy": accuracy, "apart": apart, "buffers_apart": buffers}


twin_looms.mistake(
    "looms_last_bucket_not_averaged",
    "DST001", "WGT006",
    summary="Gradients are averaged in buckets of four and the rest is forgotten: the heads go their own ways.",
    change="average the last, smaller bucket too",
    layers=("workers.0.head", "workers.1.head"),
    bites="apart",
    silent=True,
)  # fmt: skip
twin_looms.mistake(
    "looms_one_restarts_from_a_backup",
    "DST001", "WGT006",
    summary="At step 75 the second copy restarts from a backup of step 40, and averages its gradients with the first.",
    change="broadcast the weights after a restart",
    layers=("workers.0", "workers.1"),
    onset=75,
    bites="apart",
    silent=True,
)  # fmt: skip
twin_looms.mistake(
    "looms_statistics_of_their_own",
    "DST001", "DAT005",
    summary="Each copy sees other weaves and keeps its batch statistics to itself: the saved one knows half the cloth.",
    change="average the buffers, or SyncBatchNorm; shuffle before sharding",
    layers=("workers.0.norm", "workers.0.norm2", "workers.1.norm", "workers.1.norm2"),
    bites="buffers_apart",
    silent=True,
)  # fmt: skip


@program(steps=160, bites="accuracy", adversarial="copies of one model that differ have lost each other")
def looms_in_rounds(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Federated averaging: four looms train alone for ten steps, then take the mean of their weights."""
    torch.manual_seed(seed)
    x, y = cloth(1024, seed)
    first = Weaver()
    looms = nn.ModuleList([first] + [copy.deepcopy(first) for _ in range(3)])
    optimizers = [torch.optim.SGD(loom.parameters(), lr=0.05) for loom in looms]
    value = 0.0
    for step in range(steps):
        for number, (loom, optimizer) in enumerate(zip(looms, optimizers, strict=True)):
            pick = torch.randint(256, (24,)) + 256 * number
            optimizer.zero_grad()
            loss = fn.cross_entropy(loom(x[pick]), y[pick])
            loss.backward()
            optimizer.step()
            value = loss.item()
        if step % 10 == 9:
            states = [loom.state_dict() for loom in looms]
            mean = {k: sum(s[k].float() for s in states) / 4 for k in states[0]}
            for loom in looms:
                loom.load_state_dict(mean)
    looms.eval()
    test_x, test_y = cloth(500, seed + 600)
    with torch.no_grad():
        accuracy = (looms[0](test_x).argmax(1) == test_y).float().mean().item()
    return {"loss": value, "accuracy": accuracy}


@program(steps=130, bites="accuracy", adversarial="targets that are probabilities are confused with logits")
def looms_teach_each_other(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two looms with different starts learn from the labels and from what the other one believes."""
    torch.manual_seed(seed)
    x, y = cloth(1024, seed)
    left, right = Weaver(), Weaver()
    both = nn.ModuleDict({"left": left, "right": right})
    optimizer = torch.optim.AdamW(both.parameters(), lr=3e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        pick = torch.randint(1024, (32,))
        a, b = left(x[pick]), right(x[pick])
        loss = fn.cross_entropy(a, y[pick]) + fn.cross_entropy(b, y[pick])
        loss = loss + fn.cross_entropy(a, b.detach().softmax(1)) + fn.cross_entropy(b, a.detach().softmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    both.eval()
    test_x, test_y = cloth(500, seed + 600)
    with torch.no_grad():
        accuracy = ((left(test_x) + right(test_x)).argmax(1) == test_y).float().mean().item()
    return {"loss": loss.item(), "accuracy": accuracy}
