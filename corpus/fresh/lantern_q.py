"""A ferry finds the lantern on the shore: deep Q-learning from a replay memory, with a slow target network."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import healthy, program

HEADINGS = 4
SPEED = torch.tensor([[0.2, 0.0], [-0.2, 0.0], [0.0, 0.2], [0.0, -0.2]])


class River:
    """Forty ferries on a square river; the lantern stands at (0.6, 0.6) and is reached within 0.25."""

    def __init__(self, seed: int, count: int = 40, shaped: bool = True) -> None:
        self.g, self.count, self.shaped = torch.Generator().manual_seed(seed), count, shaped
        self.place = self.fresh(count)

    def fresh(self, count: int) -> Tensor:
        return 2 * torch.rand(count, 2, generator=self.g) - 1

    def step(self, heading: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        before, current = self.place, 0.03 * torch.randn(self.count, 2, generator=self.g)
        after = (before + SPEED[heading] + current).clamp(-1, 1)
        distance = (after - 0.6).norm(dim=1)
        done = distance < 0.25
        reward = done.float() - (0.2 * distance if self.shaped else 0.0)
        self.place = torch.where(done[:, None], self.fresh(self.count), after)
        return before, after, reward, done.float()


class Memory:
    def __init__(self, size: int = 4000) -> None:
        self.rows: list[tuple[Tensor, ...]] = []
        self.size = size

    def add(self, *transition: Tensor) -> None:
        self.rows = [*self.rows, transition][-self.size // 40 :]

    def sample(self, count: int) -> list[Tensor]:
        columns = [torch.cat(parts) for parts in zip(*self.rows, strict=True)]
        index = torch.randint(len(columns[0]), (count,))
        return [column[index] for column in columns]


class Dueling(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.value = nn.Linear(width, 1)
        self.advantage = nn.Linear(width, HEADINGS)

    def forward(self, place: Tensor) -> Tensor:
        h = self.body(place)
        advantage = self.advantage(h)
        return self.value(h) + advantage - advantage.mean(dim=1, keepdim=True)


@torch.no_grad()
def lantern_arrivals(q: Callable[[Tensor], Tensor], seed: int, scale: float = 1.0) -> float:
    """The share of 400 ferries that reach the lantern within fourteen moves."""
    river = River(seed + 700, 400)
    reached = torch.zeros(400)
    for _ in range(14):
        _, _, _, done = river.step(q(scale * river.place).argmax(1))
        reached = torch.maximum(reached, done)
    return reached.mean().item()


class LanternAgent:
    def __init__(self, seed: int, fault: str, lr: float = 3e-3) -> None:
        self.fault, self.river, self.memory = fault, River(seed), Memory()
        self.online = Dueling()
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        learner = self.online
        if fault == "lantern_trains_the_shadow":
            learner = self.target.requires_grad_(True)
        self.optimizer = torch.optim.Adam(learner.parameters(), lr=lr)
        self.scale = 400.0 if fault == "lantern_charted_in_fathoms" else 1.0
        self.clip = 10.0
        if fault == "lantern_held_on_a_short_leash":
            self.optimizer = torch.optim.SGD(learner.parameters(), lr=0.05, momentum=0.9)
            self.clip = 2e-4

    def explore(self, epsilon: float) -> None:
        with torch.no_grad():
            greedy = self.online(self.scale * self.river.place).argmax(1)
        chance = torch.rand(len(greedy)) < epsilon
        heading = torch.where(chance, torch.randint(HEADINGS, greedy.shape), greedy)
        before, after, reward, done = self.river.step(heading)
        self.memory.add(self.scale * before, heading, self.scale * after, reward, done)

    def learn(self) -> Tensor:
        before, heading, after, reward, done = self.memory.sample(96)
        with torch.no_grad():
            best = self.online(after).argmax(1, keepdim=True)
            future = self.target(after).gather(1, best).squeeze(1)
            goal = reward + 0.9 * (1 - done) * future
        if self.fault == "lantern_promises_grow":
            goal = reward + 1.25 * self.target(after).max(1).values.detach()
        taken = self.online(before).gather(1, heading[:, None])
        if self.fault != "lantern_row_and_column":
            taken = taken.squeeze(1)
        loss = fn.smooth_l1_loss(taken, goal)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), self.clip)
        self.optimizer.step()
        return loss

    def follow(self, pace: float = 0.1) -> None:
        if self.fault == "lantern_trains_the_shadow":
            return
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.online.parameters(), strict=True):
                slow.lerp_(fast, pace)


@program(steps=300, bites="arrivals")
def lantern(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Double, dueling Q-learning with a Huber loss and an averaged target network."""
    torch.manual_seed(seed)
    agent = LanternAgent(seed, fault)
    for step in range(steps):
        agent.explore(epsilon=max(0.1, 1 - step / 150))
        loss = agent.learn()
        agent.follow()
    return {"loss": loss.item(), "arrivals": lantern_arrivals(agent.online, seed, agent.scale)}


lantern.mistake(
    "lantern_row_and_column",
    "LSS002",
    summary="The chosen values are a column and the goals a row: each value is compared with every goal.",
    change="gather(...).squeeze(1)",
)
lantern.mistake(
    "lantern_charted_in_fathoms",
    "DAT001",
    summary="Places are charted in fathoms, up to four hundred, and go into the network as they are.",
    change="places between -1 and 1",
)
lantern.mistake(
    "lantern_promises_grow",
    "OPT001", "WGT001",
    summary="A discount of 1.25 and no end at the lantern: every value promises more than the next one.",
    change="a discount of 0.9 that stops when the ferry arrives",
)  # fmt: skip
lantern.mistake(
    "lantern_trains_the_shadow",
    "UPD003",
    summary="The optimizer was given the target network's parameters: the network that acts never changes.",
    change="optimizer over online.parameters()",
    layers=("body", "value", "advantage", "online"),
)
lantern.mistake(
    "lantern_held_on_a_short_leash",
    "GRD010", "UPD002",
    summary="SGD with gradients clipped to a norm of 2e-4: the network hardly moves.",
    change="a clip of 10",
)  # fmt: skip


@healthy(steps=300, adversarial="a loss that leaps up again and again is unstable")
def lantern_copied_now_and_then(steps: int, seed: int) -> dict[str, float]:
    """The target is copied every forty steps: the loss leaps whenever the goals move."""
    torch.manual_seed(seed)
    agent = LanternAgent(seed, "", lr=2e-3)
    before = lantern_arrivals(agent.online, seed)
    for step in range(steps):
        agent.explore(epsilon=max(0.1, 1 - step / 150))
        loss = agent.learn()
        if step % 40 == 39:
            agent.target.load_state_dict(agent.online.state_dict())
    return {"loss": loss.item(), "before": before, "arrivals": lantern_arrivals(agent.online, seed)}


@healthy(steps=350, adversarial="a loss near zero from the start on, and then one that rises, is no learning")
def lantern_paid_at_the_end(steps: int, seed: int) -> dict[str, float]:
    """Only arrival is paid: values start near zero, and the loss grows as the news spreads over the river."""
    torch.manual_seed(seed)
    agent = LanternAgent(seed, "", lr=2e-3)
    agent.river = River(seed, shaped=False)
    before = lantern_arrivals(agent.online, seed)
    for step in range(steps):
        agent.explore(epsilon=max(0.15, 1 - step / 200))
        loss = agent.learn()
        agent.follow(0.05)
    return {"loss": loss.item(), "before": before, "arrivals": lantern_arrivals(agent.online, seed)}


@healthy(steps=300, adversarial="most outputs get no gradient in a step")
def lantern_in_a_table(steps: int, seed: int) -> dict[str, float]:
    """Tabular Q-learning as an embedding of 144 squares: a step touches a few rows; plain SGD at a rate of two."""
    torch.manual_seed(seed)
    river, table = River(seed), nn.Embedding(144, HEADINGS)
    nn.init.zeros_(table.weight)
    optimizer = torch.optim.SGD(table.parameters(), lr=2.0)

    def square(place: Tensor) -> Tensor:
        cell = ((place + 1) * 5.99).long()
        return 12 * cell[:, 0] + cell[:, 1]

    for _ in range(steps):
        heading = torch.randint(HEADINGS, (40,))
        before, after, reward, done = river.step(heading)
        with torch.no_grad():
            goal = reward + 0.9 * (1 - done) * table(square(after)).max(1).values
        loss = (table(square(before))[torch.arange(40), heading] - goal).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    score = lantern_arrivals(lambda place: table(square(place)), seed)
    return {"loss": loss.item(), "arrivals": score}
