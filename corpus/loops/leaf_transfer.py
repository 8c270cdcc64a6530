"""Leaves by their outlines: a trunk learns a large task, then a small one, layer by layer or through adapters."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy, program

FEATURES = 20
BEFORE = 140  # steps of the first task


class Leaves:
    """Outlines as coefficients; kinds are regions of a bent space."""

    def __init__(self, kinds: int, turn: int, seed: int) -> None:
        rule = torch.Generator().manual_seed(11 + turn)
        self.first = torch.randn(FEATURES, 16, generator=torch.Generator().manual_seed(3)) / 4
        self.second = torch.randn(16, kinds, generator=rule)
        self.generator = torch.Generator().manual_seed(seed)

    def batch(self, count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, FEATURES, generator=self.generator)
        return x, (torch.tanh(2 * x @ self.first) @ self.second).argmax(1)


class Net(nn.Module):
    def __init__(self, kinds: int) -> None:
        super().__init__()
        self.low = nn.Sequential(nn.Linear(FEATURES, 64), nn.GELU())
        self.high = nn.Sequential(nn.Linear(64, 64), nn.GELU())
        self.head = nn.Linear(64, kinds)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.high(self.low(x)))


def pretrain(net: nn.Module, steps: int, seed: int) -> None:
    leaves = Leaves(10, 0, seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    for _ in range(steps):
        x, kind = leaves.batch(96)
        loss = functional.cross_entropy(net(x), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def accuracy(net: nn.Module, turn: int = 1, kinds: int = 5) -> float:
    x, kind = Leaves(kinds, turn, 999).batch(1200)
    with torch.no_grad():
        return (net(x).argmax(1) == kind).float().mean().item()


@program(steps=560, bites="accuracy", adversarial="layers that are frozen at first and learn later")
def leaf_unfreezing(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """After the large task the head alone learns the small one, then the upper and the lower layers join."""
    torch.manual_seed(seed)
    net = Net(10)
    short = min(40, steps // 4)  # so little that the lower layers still have something to learn
    pretrain(net, short, seed + 1)
    net.head = nn.Linear(64, 5)
    net.low.requires_grad_(False)
    net.high.requires_grad_(False)
    leaves = Leaves(5, 1, seed + 2)
    optimizer = torch.optim.SGD(net.head.parameters(), lr=0.05, momentum=0.9)
    joining = {160 - short: net.high, 280 - short: net.low}
    for step in range(steps - short):
        if step in joining:
            joining[step].requires_grad_(True)
            if mistake != "leaf_unfreezing_half":
                optimizer.add_param_group({"params": list(joining[step].parameters()), "lr": 0.05})
        x, kind = leaves.batch(96)
        loss = functional.cross_entropy(net(x), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"accuracy": accuracy(net)}


leaf_unfreezing.mistake(
    "leaf_unfreezing_half",
    "UPD003",
    layers=("high", "low"),
    onset=160,
    summary="Layers that are to join get their gradients back, and no place in the optimizer.",
    change="they are added as groups",
)


class Adapted(nn.Module):
    """A frozen linear layer and a narrow way around it."""

    def __init__(self, base: nn.Linear, rank: int, blank: bool) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)
        if blank:
            nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


@program(steps=460, bites="accuracy", adversarial="most weights are frozen; half of the adapters start at zero")
def leaf_adapters(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """The trunk is frozen for good; adapters and a new head learn, with an optimizer each."""
    torch.manual_seed(seed)
    net = Net(10)
    first = min(BEFORE, steps // 3)
    pretrain(net, first, seed + 1)
    net.requires_grad_(False)
    net.head = nn.Linear(64, 5)
    blank = mistake == "leaf_adapters_blank"
    lower, upper = net.low[0], net.high[0]
    assert isinstance(lower, nn.Linear)
    assert isinstance(upper, nn.Linear)
    net.low[0] = Adapted(lower, 6, blank)
    net.high[0] = Adapted(upper, 6, blank)
    adapters = [weight for name, weight in net.named_parameters() if ".up." in name or ".down." in name]
    leaves = Leaves(5, 1, seed + 2)
    head_optimizer = torch.optim.SGD(net.head.parameters(), lr=0.05, momentum=0.9)
    adapter_optimizer = torch.optim.Adam(adapters, lr=5e-3)
    for _ in range(steps - first):
        x, kind = leaves.batch(64)
        loss = functional.cross_entropy(net(x), kind)
        head_optimizer.zero_grad()
        adapter_optimizer.zero_grad()
        loss.backward()
        head_optimizer.step()
        adapter_optimizer.step()
    return {"accuracy": accuracy(net)}


leaf_adapters.mistake(
    "leaf_adapters_blank",
    "WGT002",
    "GRD004",
    layers=("low.0.down", "low.0.up", "high.0.down", "high.0.up"),
    onset=BEFORE,
    summary="Both halves of every adapter start at zero.",
    change="only the upper half starts at zero",
)


@healthy(steps=350, adversarial="most of the weights are never trained and look just initialised")
def leaf_random_features(steps: int, seed: int) -> dict[str, float]:
    """Random features that stay as they are, and a ridge-like readout on top."""
    torch.manual_seed(seed)
    features = nn.Sequential(nn.Linear(FEATURES, 256), nn.Tanh())
    features.requires_grad_(False)
    readout = nn.Linear(256, 5)
    leaves = Leaves(5, 1, seed + 2)
    optimizer = torch.optim.SGD(readout.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    for _ in range(steps):
        x, kind = leaves.batch(96)
        loss = functional.cross_entropy(readout(features(x)), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": 1 - accuracy(nn.Sequential(features, readout))}


@healthy(steps=400, adversarial="the task changes twice and the loss leaps each time")
def leaf_rehearsal(steps: int, seed: int) -> dict[str, float]:
    """Three tasks in a row with a head each; half of every batch is rehearsal of the earlier ones."""
    torch.manual_seed(seed)
    trunk = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    heads = nn.ModuleList(nn.Linear(64, 5) for _ in range(3))
    tasks = [Leaves(5, turn, seed + turn) for turn in (1, 2, 3)]
    optimizer = torch.optim.Adam([*trunk.parameters(), *heads.parameters()], lr=3e-3)
    share = max(1, steps // 3)
    for step in range(steps):
        now = min(step // share, 2)
        x, kind = tasks[now].batch(64)
        loss = functional.cross_entropy(heads[now](trunk(x)), kind)
        for earlier in range(now):
            x, kind = tasks[earlier].batch(32)
            loss = loss + 0.5 * functional.cross_entropy(heads[earlier](trunk(x)), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": 1 - min(accuracy(nn.Sequential(trunk, head), turn) for turn, head in enumerate(heads, 1))}
