"""A robot learns the shortest way through a warehouse: deep Q-learning with replay and a target network."""

from __future__ import annotations

import copy
import random

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy, program

SIDE = 6
GOAL = torch.tensor([4, 4])
WALLS = {(2, 1), (2, 2), (2, 3), (4, 3)}
MOVES = torch.tensor([[0, 1], [1, 0], [0, -1], [-1, 0]])


class Warehouse:
    """Many robots at once, each on its own copy of the floor."""

    def __init__(self, robots: int) -> None:
        self.blocked = torch.zeros(SIDE, SIDE, dtype=torch.bool)
        for cell in WALLS:
            self.blocked[cell] = True
        free = (~self.blocked).nonzero()
        self.free = free[(free != GOAL).any(1)]
        self.place = self.fresh(robots)

    def fresh(self, robots: int) -> Tensor:
        return self.free[torch.randint(len(self.free), (robots,))]

    def move(self, place: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        target = (place + MOVES[action]).clamp(0, SIDE - 1)
        hit = self.blocked[target[:, 0], target[:, 1]]
        target = torch.where(hit[:, None], place, target)
        return target, (target == GOAL).all(1)

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        after, done = self.move(self.place, action)
        before = self.place
        self.place = torch.where(done[:, None], self.fresh(len(done)), after)
        return before, after, done


class Replay:
    def __init__(self, capacity: int) -> None:
        self.capacity, self.filled, self.at = capacity, 0, 0
        self.before = torch.zeros(capacity, 2, dtype=torch.long)
        self.after = torch.zeros(capacity, 2, dtype=torch.long)
        self.action = torch.zeros(capacity, dtype=torch.long)
        self.done = torch.zeros(capacity)

    def push(self, before: Tensor, action: Tensor, after: Tensor, done: Tensor) -> None:
        rows = (self.at + torch.arange(len(action))) % self.capacity
        self.before[rows], self.after[rows], self.action[rows] = before, after, action
        self.done[rows] = done.float()
        self.at = (self.at + len(action)) % self.capacity
        self.filled = min(self.filled + len(action), self.capacity)

    def sample(self, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rows = torch.randint(self.filled, (count,))
        return self.before[rows], self.action[rows], self.after[rows], self.done[rows]


def success(warehouse: Warehouse, q_net: nn.Module, observe: object) -> float:
    """The share of all cells from which the greedy robot arrives in time."""
    place = warehouse.free.clone()
    arrived = torch.zeros(len(place), dtype=torch.bool)
    with torch.no_grad():
        for _ in range(14):
            after, done = warehouse.move(place, q_net(observe(place)).argmax(1))  # type: ignore[operator]
            place = torch.where(arrived[:, None], place, after)
            arrived |= done
    return arrived.float().mean().item()


@program(steps=2500, bites="success")
def warehouse_robot(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Q-learning of a way around shelves; every move costs a little."""
    torch.manual_seed(seed)
    random.seed(seed)
    warehouse, replay = Warehouse(robots=8), Replay(4000)

    layers = [nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)]
    if mistake == "relu_on_q_values":
        layers.append(nn.ReLU())  # at fault: relu_on_q_values
    q_net = nn.Sequential(*layers)
    target_net = copy.deepcopy(q_net).requires_grad_(False)
    optimizer = torch.optim.Adam(q_net.parameters(), lr=2e-3)

    def observe(place: Tensor) -> Tensor:
        if mistake == "position_in_millimetres":
            return place * 1250.0  # at fault: position_in_millimetres
        return place / (SIDE - 1) * 2 - 1

    loss = torch.tensor(0.0)
    for step in range(steps):
        epsilon = max(0.1, 1 - step / 800)
        with torch.no_grad():
            action = q_net(observe(warehouse.place)).argmax(1)
        explore = torch.rand(len(action)) < epsilon
        action = torch.where(explore, torch.randint(4, action.shape), action)
        before, after, done = warehouse.step(action)
        replay.push(before, action, after, done)
        if step < 20:
            continue

        before, action, after, done = replay.sample(64)
        with torch.no_grad():
            best = target_net(observe(after)).max(1).values
            wanted = -0.1 + 0.95 * (1 - done) * best
        chosen = q_net(observe(before)).gather(1, action[:, None])
        if mistake != "one_column_too_many":
            chosen = chosen.squeeze(1)
        loss = functional.smooth_l1_loss(chosen, wanted)  # at fault: one_column_too_many
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            target_net.load_state_dict(q_net.state_dict())
    return {"loss": loss.item(), "success": success(warehouse, q_net, observe)}


warehouse_robot.mistake(
    "one_column_too_many", "LSS002",
    summary="The chosen Q-values keep their column, so that the loss compares every robot with every other.",
    change="chosen.squeeze(1)",
)  # fmt: skip
warehouse_robot.mistake(
    "relu_on_q_values", "ACT001", "GRD004", layers=("5", "4"),
    summary="A ReLU after the last layer, where all values to learn are negative.",
    change="no ReLU on the outputs",
)  # fmt: skip
warehouse_robot.mistake(
    "position_in_millimetres", "DAT001", layers=("0",),
    summary="The network is given positions as the lidar sends them, up to 6250 millimetres.",
    change="positions scaled to −1…1",
)  # fmt: skip


@healthy(steps=2500, adversarial="a network of which no parameter ever gets a gradient, and a loss that rises for long")
def double_q_with_soft_target(steps: int, seed: int) -> dict[str, float]:
    """Double Q-learning whose target follows by a hundredth each step; rewards come late, so the loss rises first."""
    torch.manual_seed(seed)
    warehouse, replay = Warehouse(robots=8), Replay(4000)
    online = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
    lagging = copy.deepcopy(online)
    optimizer = torch.optim.AdamW(online.parameters(), lr=2e-3, weight_decay=1e-4)

    def observe(place: Tensor) -> Tensor:
        return place / 2.5 - 1

    loss = torch.tensor(0.0)
    for step in range(steps):
        with torch.no_grad():
            action = online(observe(warehouse.place)).argmax(1)
        action = torch.where(torch.rand(8) < max(0.1, 1 - step / 800), torch.randint(4, (8,)), action)
        before, after, done = warehouse.step(action)
        replay.push(before, action, after, done)
        before, action, after, done = replay.sample(64)
        with torch.no_grad():
            best = lagging(observe(after)).gather(1, online(observe(after)).argmax(1, keepdim=True)).squeeze(1)
            wanted = done + 0.95 * (1 - done) * best
        loss = functional.mse_loss(online(observe(before)).gather(1, action[:, None]).squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(lagging.parameters(), online.parameters(), strict=True):
                slow.lerp_(fast, 0.01)
    return {"loss": loss.item(), "success": success(warehouse, online, observe)}
