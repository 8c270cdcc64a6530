"""Is the hive about to swarm? Hand-made data parallelism: two copies of the net, gradients averaged between them."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from corpus.case import program

SENSORS = 18


def hive_readings(seed: int, count: int = 1600) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(77 + seed)
    x = torch.randn(count, SENSORS, generator=g)
    mood = x[:, :4].sum(1) + torch.sin(2 * x[:, 4]) + x[:, 5] * x[:, 6]
    return x, (mood > mood.quantile(0.66)).long() + (mood > mood.quantile(0.33)).long()


class HiveNet(nn.Module):
    def __init__(self, batch_norm: bool = False) -> None:
        super().__init__()
        norm = nn.BatchNorm1d if batch_norm else nn.LayerNorm
        self.stem = nn.Sequential(nn.Linear(SENSORS, 64), norm(64), nn.SiLU())
        self.body = nn.Sequential(nn.Linear(64, 64), norm(64), nn.SiLU())
        self.swarm = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.swarm(self.body(self.stem(x)))


def spread(copies: list[HiveNet]) -> float:
    pairs = zip(copies[0].state_dict().values(), copies[1].state_dict().values(), strict=True)
    return sum((a.float() - b.float()).norm().item() for a, b in pairs)


def score(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        hit = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return hit


def average_gradients(copies: list[HiveNet], leave_out: str = "") -> None:
    for (name, p), q in zip(copies[0].named_parameters(), copies[1].parameters(), strict=True):
        if leave_out and name.startswith(leave_out):
            continue
        assert p.grad is not None
        assert q.grad is not None
        mean = (p.grad + q.grad) / 2
        p.grad.copy_(mean)
        q.grad.copy_(mean)


@program(steps=140, bites="spread")
def hive_pair(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two workers with half of the batch each; gradients are averaged before both take the step."""
    torch.manual_seed(seed)
    x, y = hive_readings(seed)
    first = HiveNet()
    workers = [first, copy.deepcopy(first)]
    optimizers = [torch.optim.SGD(w.parameters(), lr=0.1, momentum=0.9, nesterov=True) for w in workers]
    loss = torch.tensor(0.0)
    for step in range(steps):
        rows = torch.randint(1300, (64,))
        for worker, optimizer, part in zip(workers, optimizers, rows.chunk(2), strict=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(worker(x[part]), y[part])
            loss.backward()
        average_gradients(workers, "body.0" if fault == "hive_middle_not_exchanged" else "")
        if fault == "hive_rate_lowered_on_one" and step == 60:
            optimizers[0].param_groups[0]["lr"] *= 0.1  # "if rank == 0:" stands one line too high
        for optimizer in optimizers:
            optimizer.step()
    return {"loss": loss.item(), "spread": spread(workers), "accuracy": score(workers[0], x[1300:], y[1300:])}


hive_pair.mistake(
    "hive_middle_not_exchanged",
    "DST001",
    summary="The bucket of the middle layer is left out of the exchange: each worker trains its own.",
    change="average every gradient",
    layers=("body.0", "workers.0.body.0", "workers.1.body.0"),
    silent=True,
)
hive_pair.mistake(
    "hive_rate_lowered_on_one",
    "DST001",
    summary="From step 60 on only the first worker's rate is lowered: the copies part everywhere.",
    change="lower the rate on every worker",
    onset=60,
    silent=True,
)


@program(steps=140, bites="spread")
def hive_pair_normed(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The pair with BatchNorm; the first worker's running statistics go to the second after every step."""
    torch.manual_seed(seed)
    x, y = hive_readings(100 + seed)
    workers = [HiveNet(batch_norm=True), HiveNet(batch_norm=True)]
    workers[1].load_state_dict(workers[0].state_dict())
    optimizers = [torch.optim.AdamW(w.parameters(), lr=3e-3) for w in workers]
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(1300, (64,))
        for worker, part in zip(workers, rows.chunk(2), strict=True):
            worker.zero_grad()
            loss = nn.functional.cross_entropy(worker(x[part]), y[part])
            loss.backward()
        average_gradients(workers)
        for optimizer in optimizers:
            optimizer.step()
        if fault != "hive_statistics_stay_home":
            for mine, yours in zip(workers[0].buffers(), workers[1].buffers(), strict=True):
                yours.copy_(mine)
    return {"loss": loss.item(), "spread": spread(workers), "accuracy": score(workers[1], x[1300:], y[1300:])}


hive_pair_normed.mistake(
    "hive_statistics_stay_home",
    "DST001",
    summary="Running statistics are never broadcast: the copies agree in every weight and in no buffer.",
    change="broadcast the buffers",
    layers=tuple(f"{prefix}{norm}" for prefix in ("", "workers.0.", "workers.1.") for norm in ("stem.1", "body.1")),
    silent=True,
)


@program(steps=140, adversarial="copies of one net must agree: they meet every ten steps, on purpose")
def hive_apiaries(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Local training: two apiaries train alone and average their weights every ten steps."""
    torch.manual_seed(seed)
    x, y = hive_readings(200 + seed)
    first = HiveNet()
    apiaries = [first, copy.deepcopy(first)]
    optimizers = [torch.optim.SGD(a.parameters(), lr=0.05, momentum=0.9) for a in apiaries]
    loss = torch.tensor(0.0)
    for step in range(steps):
        for number, (net, optimizer) in enumerate(zip(apiaries, optimizers, strict=True)):
            rows = torch.randint(650, (32,)) + 650 * number
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
        if step % 10 == 9:
            with torch.no_grad():
                for p, q in zip(apiaries[0].parameters(), apiaries[1].parameters(), strict=True):
                    p.copy_((p + q) / 2)
                    q.copy_(p)
    return {"loss": loss.item(), "accuracy": score(apiaries[0], x[1300:], y[1300:])}


@program(
    steps=140, adversarial="two nets of one shape with different weights are ranks that diverged: they are a committee"
)
def hive_committee(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Three nets from different starts, one optimizer, each on its own bootstrap."""
    torch.manual_seed(seed)
    x, y = hive_readings(300 + seed)
    committee = nn.ModuleList(HiveNet(batch_norm=True) for _ in range(3))
    optimizer = torch.optim.RMSprop(committee.parameters(), lr=1e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        losses = []
        for member in committee:
            rows = torch.randint(1300, (48,))
            losses.append(nn.functional.cross_entropy(member(x[rows]), y[rows]))
        loss = torch.stack(losses).mean()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": score(committee[0], x[1300:], y[1300:])}


@program(
    steps=140, adversarial="weights that no optimizer moves are a wiring mistake: the teacher follows as an average"
)
def hive_mean_teacher(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Few labels, many readings: the student must agree with its own running average."""
    torch.manual_seed(seed)
    x, y = hive_readings(400 + seed)
    student = HiveNet()
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for step in range(steps):
        known, unknown = torch.randint(400, (48,)), torch.randint(1300, (48,))
        loss = nn.functional.cross_entropy(student(x[known]), y[known])
        noisy = student(x[unknown] + 0.05 * torch.randn(48, SENSORS)).softmax(1)
        loss = loss + min(1.0, step / 60) * (noisy - teacher(x[unknown]).softmax(1)).square().sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.lerp_(fast, 0.05)
    return {"loss": loss.item(), "accuracy": score(teacher, x[1300:], y[1300:])}
