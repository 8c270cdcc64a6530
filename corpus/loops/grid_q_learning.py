"""Q-learning on a small grid: replay, a target network, greedy tests."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy, program

SIDE = 5
MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])


class QNetwork(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2 * SIDE * SIDE, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.advantage = nn.Linear(width, 4)
        self.value = nn.Linear(width, 1)

    def forward(self, view: Tensor) -> Tensor:
        hidden = self.body(view)
        advantage = self.advantage(hidden)
        return self.value(hidden) + advantage - advantage.mean(1, keepdim=True)


def observe(at: Tensor, goal: Tensor) -> Tensor:
    cells = [functional.one_hot(place[:, 0] * SIDE + place[:, 1], SIDE * SIDE) for place in (at, goal)]
    return torch.cat(cells, 1).float()


def places(count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, SIDE, (count, 2), generator=generator)


class Memory:
    def __init__(self, size: int) -> None:
        self.size, self.filled, self.next = size, 0, 0
        self.view = torch.zeros(size, 2 * SIDE * SIDE)
        self.action = torch.zeros(size, dtype=torch.long)
        self.reward = torch.zeros(size)
        self.after = torch.zeros(size, 2 * SIDE * SIDE)
        self.ended = torch.zeros(size)

    def add(self, view: Tensor, action: Tensor, reward: Tensor, after: Tensor, ended: Tensor, behind: int = 0) -> None:
        slots = (self.next + torch.arange(len(action))) % self.size
        self.view[slots], self.action[slots], self.after[slots], self.ended[slots] = view, action, after, ended
        self.reward[(slots - behind) % self.size] = reward
        self.next = (self.next + len(action)) % self.size
        self.filled = min(self.filled + len(action), self.size)

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        rows = torch.randint(0, self.filled, (count,), generator=generator)
        return self.view[rows], self.action[rows], self.reward[rows], self.after[rows], self.ended[rows]


@torch.no_grad()
def success(net: nn.Module, generator: torch.Generator) -> float:
    at, goal = places(256, generator), places(256, generator)
    found = (at == goal).all(1)
    for _ in range(9):
        at = (at + MOVES[net(observe(at, goal)).argmax(1)]).clamp(0, SIDE - 1)
        found = found | (at == goal).all(1)
    return found.float().mean().item()


@program(steps=500, bites="success")
def grid_dqn(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Deep Q-learning with a duelling network and a target that is copied now and then."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    q_net = QNetwork()
    target_net = copy.deepcopy(q_net)
    optimizer = torch.optim.Adam(q_net.parameters(), lr=2e-3)
    memory = Memory(6000)
    at, goal = places(32, generator), places(32, generator)
    for step in range(steps):
        view = observe(at, goal)
        with torch.no_grad():
            greedy = q_net(view).argmax(1)
        explore = torch.rand(32, generator=generator) < max(0.2, 1 - step / 200)
        action = torch.where(explore, torch.randint(0, 4, (32,), generator=generator), greedy)
        moved = (at + MOVES[action]).clamp(0, SIDE - 1)
        ended = (moved == goal).all(1)
        behind = 11 if mistake == "grid_dqn_reward_column" else 0
        memory.add(view, action, ended.float() - 0.05, observe(moved, goal), ended.float(), behind)
        fresh = ended | (torch.rand(32, generator=generator) < 0.05)
        at = torch.where(fresh[:, None], places(32, generator), moved)
        goal = torch.where(fresh[:, None], places(32, generator), goal)

        views, actions, rewards, afters, ends = memory.sample(96, generator)
        with torch.no_grad():
            best = target_net(afters).max(1).values
            wanted = rewards + 0.9 * (1 - ends) * best
        guess = q_net(views).gather(1, actions[:, None]).squeeze(1)
        loss = functional.smooth_l1_loss(guess, wanted)
        if mistake == "grid_dqn_new_broom":
            optimizer = torch.optim.Adam(q_net.parameters(), lr=2e-3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19 and mistake != "grid_dqn_first_copy":
            target_net.load_state_dict(q_net.state_dict())
    return {"success": success(q_net, generator)}


grid_dqn.mistake(
    "grid_dqn_first_copy",
    "UPD003",
    layers=("target_net",),
    summary="The target network stays the copy that was taken before the first step.",
    change="the target is copied from the network every 20 steps",
)
grid_dqn.mistake(
    "grid_dqn_reward_column",
    "DAT004",
    "OPT005",
    summary="The memory writes rewards eleven rows before the moves that earned them.",
    change="rewards are written beside their moves",
)


grid_dqn.mistake(
    "grid_dqn_new_broom",
    "OPT008",
    summary="The optimizer is built anew at each step.",
    change="it is built once",
)


@healthy(steps=600, adversarial="two networks are moved only by averaging, one learns every other time")
def grid_twin_critics(steps: int, seed: int) -> dict[str, float]:
    """Two critics, the smaller of which counts, a policy that learns every other step, and slow copies of all."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    first, second = QNetwork(48), QNetwork(48)
    policy = nn.Sequential(nn.Linear(2 * SIDE * SIDE, 64), nn.ReLU(), nn.Linear(64, 4))
    slow_first, slow_second = copy.deepcopy(first), copy.deepcopy(second)
    for parameter in [*slow_first.parameters(), *slow_second.parameters()]:
        parameter.requires_grad_(False)
    critics = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=4e-3)
    actor = torch.optim.Adam(policy.parameters(), lr=6e-3)
    memory = Memory(12000)
    for step in range(steps):
        at, goal = places(128, generator), places(128, generator)
        action = torch.randint(0, 4, (128,), generator=generator)
        moved = (at + MOVES[action]).clamp(0, SIDE - 1)
        ended = (moved == goal).all(1)
        memory.add(observe(at, goal), action, ended.float(), observe(moved, goal), ended.float())
        views, actions, rewards, afters, ends = memory.sample(128, generator)
        with torch.no_grad():
            likely = policy(afters).softmax(1)
            ahead = (likely * torch.minimum(slow_first(afters), slow_second(afters))).sum(1)
            wanted = rewards + 0.85 * (1 - ends) * ahead
        guesses = [net(views).gather(1, actions[:, None]).squeeze(1) for net in (first, second)]
        loss = sum((functional.mse_loss(guess, wanted) for guess in guesses), torch.zeros(()))
        critics.zero_grad()
        loss.backward()
        critics.step()
        if step % 2 == 1:
            logits = policy(views)
            with torch.no_grad():
                worth = torch.minimum(first(views), second(views))
            gain = (logits.softmax(1) * worth).sum(1).mean()
            entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
            actor.zero_grad()
            (-gain - 0.005 * entropy).backward()
            actor.step()
        with torch.no_grad():
            for slow, net in ((slow_first, first), (slow_second, second)):
                for old, new in zip(slow.parameters(), net.parameters()):
                    old.lerp_(new, 0.1)
    return {"loss": 1 - success(policy, generator)}
