"""Keys and locks: a network that knows many locks is adapted to a new maker, with low-rank updates or a new head."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from corpus.case import program

BITTINGS = 24


def keys(generator: torch.Generator, mixing: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The lock that a key opens is the largest of eight bent sums over its bittings."""
    cut = torch.randn(n, BITTINGS, generator=generator)
    return cut, torch.tanh(cut @ mixing).mul(torch.linspace(1, 1.4, 8)).argmax(1)


class LowRank(nn.Module):
    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.empty(rank, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * (x @ self.down.T) @ self.up.T


class LockNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter: nn.Module = nn.Linear(BITTINGS, 64)
        self.turn: nn.Module = nn.Linear(64, 64)
        self.open = nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.open(torch.relu(self.turn(torch.relu(self.enter(x)))))


def a_net_that_knows_other_locks(seed: int) -> tuple[LockNet, torch.Generator, Tensor]:
    """Weights as a download would give them: a network trained on the first maker's keys."""
    generator = torch.Generator().manual_seed(300 + seed)
    mixing = torch.randn(BITTINGS, 8, generator=generator) / 3
    torch.manual_seed(seed)
    net = LockNet()
    with torch.no_grad():  # a ridge fit on random features stands for the training that others have paid for
        for layer in (net.enter, net.turn):
            assert isinstance(layer, nn.Linear)
            layer.weight.normal_(0, math.sqrt(2 / layer.in_features), generator=generator)
        x, y = keys(generator, mixing, 1500)
        assert isinstance(net.enter, nn.Linear)
        assert isinstance(net.turn, nn.Linear)
        h = torch.relu(net.turn(torch.relu(net.enter(x))))
        wanted = nn.functional.one_hot(y, 8).float() * 4 - 0.5
        solved = torch.linalg.solve(h.T @ h + 5 * torch.eye(64), h.T @ wanted)
        net.open.weight.copy_(solved.T)
        net.open.bias.zero_()
    new_maker = mixing + 0.35 * torch.randn(BITTINGS, 8, generator=generator)
    return net, generator, new_maker


@program(steps=180, bites="accuracy")
def lock_adapters(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Rank-six updates of both hidden layers on a frozen network, AdamW with a linear warm-up."""
    net, generator, mixing = a_net_that_knows_other_locks(seed)
    net.requires_grad_(False)
    alpha = 2400.0 if fault == "lock_alpha_without_its_rank" else 12.0
    first, second = LowRank(net.enter, 6, alpha), LowRank(net.turn, 6, alpha)  # type: ignore[arg-type]
    net.enter, net.turn = first, second
    if fault == "lock_both_halves_zero":
        for adapter in (first, second):
            nn.init.zeros_(adapter.down)
    trained = [p for p in net.parameters() if p.requires_grad]
    if fault == "lock_adapters_of_one_layer_only":
        trained = [first.down, first.up]
    optimizer = torch.optim.AdamW(trained, lr=6e-3, weight_decay=0.0)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    start = second.up.detach().clone()
    loss = torch.zeros(())
    for _ in range(steps):
        x, y = keys(generator, mixing, 64)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        warm.step()
    x, y = keys(generator, mixing, 1000)
    accuracy = (net(x).argmax(1) == y).float().mean().item()
    return {"loss": loss.item(), "accuracy": accuracy, "moved": (second.up.detach() - start).norm().item()}


lock_adapters.mistake(
    "lock_both_halves_zero",
    "GRD004", "WGT002", "UPD003", "OPT005", "UPD002",
    summary="Both factors of every adapter start at zero: neither gets a gradient, ever.",
    change="draw the first factor at random",
    layers=("enter.down", "enter.up", "turn.down", "turn.up", "enter", "turn"),
)  # fmt: skip
lock_adapters.mistake(
    "lock_alpha_without_its_rank",
    "UPD001", "OPT007", "WGT003", "OPT001", "GRD002", "OPT004", "OPT003", "GRD006", "GRD005", "ACT001",
    summary="Alpha is 2400 where 12 was meant: every step changes the layers two hundred times too much.",
    change="alpha of 12",
    layers=("enter", "turn"),
)  # fmt: skip
lock_adapters.mistake(
    "lock_adapters_of_one_layer_only",
    "UPD003", "GRD007",
    summary="The optimizer gets the adapters of the first layer; those of the second are never moved.",
    change="give it all trainable parameters",
    layers=("turn", "turn.down", "turn.up"),
    bites="moved",
    silent=True,
)  # fmt: skip


@program(steps=180, bites="accuracy")
def lock_new_head(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The whole network goes on for a maker with five locks, with a new head and a smaller rate below it."""
    net, generator, mixing = a_net_that_knows_other_locks(seed)
    fresh = nn.Linear(64, 5)
    if fault != "lock_head_after_the_optimizer":
        net.open = fresh
    optimizer = torch.optim.Adam(
        [
            {"params": [*net.enter.parameters(), *net.turn.parameters()], "lr": 1e-3},
            {"params": net.open.parameters(), "lr": 5e-3},
        ]
    )
    net.open = fresh
    if fault == "lock_turn_replaced_as_well":
        net.turn = nn.Linear(64, 64)  # "start this layer afresh": the optimizer still holds the old one
    before = [p.detach().clone() for p in (net.open.weight, *net.turn.parameters())]
    losses: list[float] = []
    for _ in range(steps):
        x, y = keys(generator, mixing, 64)
        loss = nn.functional.cross_entropy(net(x), y % 5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    x, y = keys(generator, mixing, 1000)
    accuracy = (net(x).argmax(1) == y % 5).float().mean().item()
    return {
        "loss": sum(losses[-5:]) / min(5, steps),
        "accuracy": accuracy,
        "head_moved": (net.open.weight.detach() - before[0]).norm().item(),
        "turn_moved": (next(net.turn.parameters()).detach() - before[1]).norm().item(),
    }


lock_new_head.mistake(
    "lock_head_after_the_optimizer",
    "UPD003", "GRD007",
    summary="The head is replaced after the optimizer was built, which goes on holding the old one.",
    change="build the optimizer after the new head",
    layers=("open",),
    bites="head_moved",
    silent=True,
)  # fmt: skip
lock_new_head.mistake(
    "lock_turn_replaced_as_well",
    "UPD003", "GRD007",
    summary="The second layer is started afresh after the optimizer was built: it stays as it was drawn.",
    change="build the optimizer last",
    layers=("turn",),
    bites="turn_moved",
    silent=True,
)  # fmt: skip


@program(steps=120, adversarial="zero gradients and zero outputs at the first step: dead")
def lock_bottlenecks_from_zero(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Bottleneck adapters whose last matrix starts at zero, behind each frozen layer; the head trains too."""
    net, generator, mixing = a_net_that_knows_other_locks(seed)
    net.requires_grad_(False)
    net.open.requires_grad_(True)
    adapters = nn.ModuleList(nn.Sequential(nn.Linear(64, 12), nn.GELU(), nn.Linear(12, 64)) for _ in range(2))
    for adapter in adapters:
        assert isinstance(adapter, nn.Sequential)
        for p in adapter[2].parameters():
            nn.init.zeros_(p)
    net.add_module("adapters", adapters)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=4e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        x, y = keys(generator, mixing, 64)
        h = torch.relu(net.enter(x))
        h = h + adapters[0](h)
        h = torch.relu(net.turn(h))
        h = h + adapters[1](h)
        loss = nn.functional.cross_entropy(net.open(h), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=150, adversarial="parameters without a gradient, then a jump in the updates: a broken loop")
def lock_thawed_in_stages(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Gradual unfreezing: the head alone, then the second layer, then all, each new group at half the rate."""
    net, generator, mixing = a_net_that_knows_other_locks(seed)
    net.requires_grad_(False)
    net.open = nn.Linear(64, 8)
    optimizer = torch.optim.Adam(net.open.parameters(), lr=4e-3)
    losses: list[float] = []
    for step in range(steps):
        for stage, layer in ((50, net.turn), (100, net.enter)):
            if step == stage:
                layer.requires_grad_(True)
                optimizer.add_param_group({"params": layer.parameters(), "lr": 4e-3 / (stage // 25)})
        x, y = keys(generator, mixing, 64)
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": sum(losses[-5:]) / min(5, steps)}
