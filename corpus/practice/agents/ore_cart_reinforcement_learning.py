"""A cart on a slag heap: it sees where it stands and where the ore lies, and has a dozen moves to get there."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from corpus.case import program

SIDE, MOVES, CARTS = 6, 12, 48
WAYS = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])


class Heap:
    """Forty-eight heaps at once; each move costs a little, the ore is worth one and ends the trip."""

    def __init__(self, carts: int = CARTS) -> None:
        self.cart, self.ore = torch.randint(SIDE, (carts, 2)), torch.randint(SIDE, (carts, 2))
        self.running = (self.cart != self.ore).any(1)

    def look(self) -> Tensor:
        return torch.cat([self.cart, self.ore], dim=1) / (SIDE - 1) * 2 - 1

    def move(self, way: Tensor) -> Tensor:
        was_running = self.running
        self.cart = torch.where(was_running[:, None], (self.cart + WAYS[way]).clamp(0, SIDE - 1), self.cart)
        self.running = was_running & (self.cart != self.ore).any(1)
        return was_running.float() * (torch.where(self.running, 0.0, 1.0) - 0.05)

    def shortest(self) -> Tensor:
        """Along the longer way first."""
        gap = self.ore - self.cart
        sideways = torch.where(gap[:, 1] > 0, 0, 1)
        upwards = torch.where(gap[:, 0] > 0, 2, 3)
        return torch.where(gap[:, 1].abs() >= gap[:, 0].abs(), sideways, upwards)


class Driver(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.policy = nn.Linear(64, 4)
        self.value = nn.Linear(64, 1)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(seen)
        return self.policy(hidden), self.value(hidden)


def returns_of(rewards: list[Tensor], discount: float = 0.97) -> Tensor:
    total, out = torch.zeros_like(rewards[0]), []
    for reward in reversed(rewards):
        total = reward + discount * total
        out.append(total)
    return torch.stack(out[::-1])


@torch.no_grad()
def ore_found(choose: Callable[[Tensor], Tensor], seed: int) -> float:
    """The share of 300 carts that get there, drawing moves as in training."""
    torch.manual_seed(seed + 777)
    heap = Heap(300)
    for _ in range(MOVES):
        heap.move(Categorical(logits=choose(heap.look()).nan_to_num()).sample())
    return 1 - heap.running.float().mean().item()


@program(steps=150, bites="found")
def slagheap(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Advantage actor-critic, one trunk for both, Adam, an entropy bonus."""
    torch.manual_seed(seed)
    driver = Driver()
    optimizer = torch.optim.Adam(driver.parameters(), lr=0.5 if fault == "slag_rate_of_a_half" else 4e-3)
    loss, wrong = torch.zeros(()), 0.0
    for _ in range(steps):
        heap, seen, ways, rewards, alive = Heap(), [], [], [], []
        with torch.no_grad():
            for _ in range(MOVES):
                seen.append(heap.look())
                alive.append(heap.running.float())
                ways.append(Categorical(logits=driver(seen[-1])[0]).sample())
                rewards.append(heap.move(ways[-1]))
        returns, mask = returns_of(rewards).flatten(), torch.cat(alive)
        logits, values = driver(torch.cat(seen))
        moves = Categorical(logits=logits)
        advantage = (returns - values.detach().flatten()) * mask
        actor = -(moves.log_prob(torch.cat(ways)) * advantage).sum() / mask.sum()
        if fault == "slag_minus_forgotten":
            actor = -actor
        if fault == "slag_values_in_a_column":
            critic = (values - returns).pow(2).mean()
        else:
            critic = ((values.flatten() - returns).pow(2) * mask).sum() / mask.sum()
        loss = actor + 0.5 * critic - 0.01 * (moves.entropy() * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(driver.parameters(), 2.0)
        optimizer.step()
        wrong = (((values.flatten() - returns).pow(2) * mask).sum() / mask.sum()).item()
    found = ore_found(lambda seen: driver(seen)[0], seed)
    return {"loss": loss.item(), "found": found, "wrong": min(wrong, 1e6)}


slagheap.mistake(
    "slag_minus_forgotten",
    "LSS003",
    summary="The policy's loss lacks its minus: what was rewarded becomes rarer.",
    change="actor = -(log_prob * advantage).mean()",
)
slagheap.mistake(
    "slag_values_in_a_column",
    "LSS002",
    summary="Values are a column, returns a row: the critic learns one number for all states.",
    change="values.flatten()",
    bites="wrong",
)
slagheap.mistake(
    "slag_rate_of_a_half",
    "OPT007", "UPD001", "ACT002", "OPT001",
    summary="Adam at 0.5: within a few updates every unit is at an end of its range and the policy is fixed.",
    change="lr=4e-3",
)  # fmt: skip


@program(steps=150, bites="found", adversarial="a loss without a trend means that nothing is learnt")
def slag_reinforce(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Plain policy gradient with normalised returns: the loss wanders about zero while the carts get better."""
    torch.manual_seed(seed)
    policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 4))
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=4e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        heap, log_probs, rewards, alive = Heap(), [], [], []
        for _ in range(MOVES):
            moves = Categorical(logits=policy(heap.look()))
            way = moves.sample()
            log_probs.append(moves.log_prob(way))
            alive.append(heap.running)
            rewards.append(heap.move(way))
        returns, mask = returns_of(rewards), torch.stack(alive)
        returns = (returns - returns[mask].mean()) / (returns[mask].std() + 1e-6)
        loss = -(torch.stack(log_probs) * returns)[mask].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "found": ore_found(policy, seed)}


@program(steps=150, bites="found", adversarial="a network that never gets a gradient was forgotten")
def slag_q_values(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Q-learning from a memory, against a copy that is refreshed every twenty updates."""
    torch.manual_seed(seed)
    online = nn.Sequential(nn.Linear(4, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 4))
    target = copy.deepcopy(online)
    optimizer = torch.optim.Adam(online.parameters(), lr=2e-3)
    memory: list[tuple[Tensor, ...]] = []
    loss = torch.zeros(())
    for step in range(steps):
        heap = Heap()
        for _ in range(4):
            seen, going = heap.look(), heap.running
            with torch.no_grad():
                greedy = online(seen).argmax(1)
            way = torch.where(torch.rand(CARTS) < 0.4, torch.randint(4, (CARTS,)), greedy)
            reward = heap.move(way)
            memory.append((seen[going], way[going], reward[going], heap.look()[going], heap.running[going].float()))
        seen, way, reward, after, alive = (torch.cat(part) for part in zip(*memory[-160:], strict=True))
        pick = torch.randint(len(seen), (256,))
        with torch.no_grad():
            goal = reward[pick] + 0.9 * alive[pick] * target(after[pick]).max(1).values
        loss = nn.functional.smooth_l1_loss(online(seen[pick]).gather(1, way[pick, None])[:, 0], goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            target.load_state_dict(online.state_dict())
    return {"loss": loss.item(), "found": ore_found(lambda seen: 30 * online(seen), seed)}


@program(steps=140, bites="found", adversarial="a loss that rises again diverges")
def slag_by_example(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Learns from an expert, at first beside the ore and then, from step 70 and 105, from ever farther away."""
    torch.manual_seed(seed)
    policy = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(policy.parameters(), lr=8e-3)
    loss = torch.zeros(())
    for step in range(steps):
        reach = 1 if step < 70 else 3 if step < 105 else SIDE
        heap = Heap(128)
        heap.cart = (heap.ore + torch.randint(-reach, reach + 1, (128, 2))).clamp(0, SIDE - 1)
        loss = nn.functional.cross_entropy(policy(heap.look()), heap.shortest())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "found": ore_found(policy, seed)}
