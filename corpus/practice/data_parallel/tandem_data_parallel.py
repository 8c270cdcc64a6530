"""Data parallelism by hand: two copies of a net, half a batch each, gradients averaged in a loop before the step."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program

CLASSES, LENGTH = 5, 48


def strides(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Three axes of an accelerometer; the class is the gait, speed and phase are free."""
    gait = torch.randint(CLASSES, (n,), generator=generator)
    t = torch.arange(LENGTH) / LENGTH
    speed = 2 + torch.rand(n, 1, generator=generator)
    phase = 6.28 * torch.rand(n, 1, generator=generator)
    turn = 6.28 * speed * t + phase
    second = torch.sin(2 * turn + gait[:, None])
    third = torch.cos(3 * turn) * (gait[:, None] % 2)
    x = torch.stack([torch.sin(turn), second, third], 1)
    return x + 0.6 * torch.randn(n, 3, LENGTH, generator=generator), gait


def walker() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(3, 24, 5, padding=2), nn.BatchNorm1d(24), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(24, 32, 5, padding=2), nn.BatchNorm1d(32), nn.ReLU(), nn.AdaptiveAvgPool1d(2),
        nn.Flatten(), nn.Linear(64, CLASSES),
    )  # fmt: skip


class Tandem(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rank0 = walker()
        self.rank1 = deepcopy(self.rank0)

    def all_reduce(self, skip: str = "") -> None:
        for (name, a), b in zip(self.rank0.named_parameters(), self.rank1.parameters(), strict=True):
            if skip and name.startswith(skip):
                continue
            assert a.grad is not None
            assert b.grad is not None
            mean = (a.grad + b.grad) / 2
            a.grad, b.grad = mean, mean.clone()

    def broadcast_buffers(self) -> None:
        for a, b in zip(self.rank0.buffers(), self.rank1.buffers(), strict=True):
            b.copy_(a)

    def apart(self) -> dict[str, float]:
        weights = [(a - b).norm() for a, b in zip(self.rank0.parameters(), self.rank1.parameters(), strict=True)]
        pairs = zip(self.rank0.buffers(), self.rank1.buffers(), strict=True)
        buffers = [(a - b).float().norm() for a, b in pairs]
        return {"weights": torch.stack(weights).norm().item(), "buffers": torch.stack(buffers).norm().item()}


@torch.no_grad()
def accuracy(model: nn.Module, seed: int) -> float:
    model.eval()
    x, y = strides(400, torch.Generator().manual_seed(600 + seed))
    right = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return right


@program(steps=120, bites="accuracy")
def tandem(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two ranks in one process, one SGD each, gradients averaged and buffers broadcast in every step."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    pair = Tandem()
    workers = [torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9) for net in (pair.rank0, pair.rank1)]
    loss = torch.zeros(())
    for step in range(steps):
        x, y = strides(64, generator)
        shards = [(x[:32], y[:32]), (x[32:], y[32:])]
        for net, worker, (x, y) in zip((pair.rank0, pair.rank1), workers, shards, strict=True):
            worker.zero_grad()
            loss = functional.cross_entropy(net(x), y)
            loss.backward()
        if fault == "tandem_classifier_left_out":
            pair.all_reduce(skip="9.")
        elif fault == "tandem_link_lost" and step >= 50:
            pass
        else:
            pair.all_reduce()
        for worker in workers:
            worker.step()
        if fault != "tandem_buffers_kept":
            pair.broadcast_buffers()
    return {"loss": loss.item(), "accuracy": accuracy(pair.rank0, seed), **pair.apart()}


tandem.mistake(
    "tandem_classifier_left_out",
    "DST001",
    summary="The last layer is left out of the averaging: the ranks have different classifiers.",
    change="average all gradients",
    layers=("rank0.9", "rank1.9"),
    bites="weights",
    silent=True,
)
tandem.mistake(
    "tandem_link_lost",
    "DST001",
    summary="From step fifty nothing is averaged any more: an exception in the link is swallowed.",
    change="let the error stop the run",
    onset=50,
    bites="weights",
    silent=True,
)
tandem.mistake(
    "tandem_buffers_kept",
    "DST001",
    summary="The running statistics of each rank stay its own.",
    change="broadcast the buffers",
    layers=("rank0.1", "rank0.5", "rank1.1", "rank1.5"),
    bites="buffers",
    silent=True,
)


@program(steps=100, bites="accuracy", adversarial="two nets of one shape that drift apart")
def tandem_committee(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A committee: two members from one start, each with data of its own, their scores are averaged in the end."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    first = walker()
    members = nn.ModuleList([first, deepcopy(first)])
    optimizer = torch.optim.SGD(members.parameters(), lr=0.05, momentum=0.9)
    loss = torch.zeros(())
    for _ in range(steps):
        loss = torch.stack([functional.cross_entropy(m(x), y) for m in members for x, y in [strides(32, generator)]])
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
    return {"loss": loss.mean().item(), "accuracy": accuracy(members[0], seed)}


@program(steps=120, bites="accuracy", adversarial="the weights are replaced from outside the optimizer")
def tandem_clients(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Federated averaging: one net visits two clients in turn, and every twelve steps their mean is taken."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    net = walker()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    server = deepcopy(net.state_dict())
    returned: list[dict[str, Tensor]] = []
    loss = torch.zeros(())
    for step in range(steps):
        x, y = strides(48, generator)
        loss = functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 6 == 5:
            returned.append(deepcopy(net.state_dict()))
            if len(returned) == 2:
                server = {name: sum(r[name] for r in returned) / 2 for name in server}  # type: ignore[misc]
                returned.clear()
            net.load_state_dict(server)
    return {"loss": loss.item(), "accuracy": accuracy(net, seed)}


@program(steps=120, bites="accuracy", adversarial="a rate that looks far too high, a loss that looks far too small")
def tandem_small_units(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The loss is divided by four hundred for the log; the rate of plain descent is twenty to make up for it."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    net = walker()
    optimizer = torch.optim.SGD(net.parameters(), lr=20.0, momentum=0.9)
    loss = torch.zeros(())
    for _ in range(steps):
        x, y = strides(48, generator)
        loss = functional.cross_entropy(net(x), y) / 400
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": 400 * loss.item(), "accuracy": accuracy(net, seed)}
