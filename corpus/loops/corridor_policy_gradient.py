"""Walkers in a corridor of which one end pays: REINFORCE, and an actor with a critic."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional

from corpus.case import healthy, program

LENGTH = 9
HORIZON = 16


class Corridor:
    """Many walkers at once. A lamp says which end pays; every move costs a little."""

    def __init__(self, walkers: int, generator: torch.Generator) -> None:
        self.walkers, self.generator = walkers, generator
        self.reset()

    def reset(self) -> Tensor:
        self.at = torch.randint(2, LENGTH - 2, (self.walkers,), generator=self.generator)
        self.pays = torch.randint(0, 2, (self.walkers,), generator=self.generator)
        self.over = torch.zeros(self.walkers, dtype=torch.bool)
        return self.observe()

    def observe(self) -> Tensor:
        return torch.cat([functional.one_hot(self.at, LENGTH), functional.one_hot(self.pays, 2)], 1).float()

    def move(self, right: Tensor) -> tuple[Tensor, Tensor]:
        slips = torch.rand(self.walkers, generator=self.generator) < 0.1
        direction = torch.where(slips, 1 - right, right) * 2 - 1
        moved = (self.at + direction).clamp(0, LENGTH - 1)
        self.at = torch.where(self.over, self.at, moved)
        paid = self.at == self.pays * (LENGTH - 1)
        wrong = self.at == (1 - self.pays) * (LENGTH - 1)
        reward = torch.where(self.over, torch.zeros(self.walkers), paid.float() - wrong.float() - 0.02)
        self.over = self.over | paid | wrong
        return self.observe(), reward


def returns_to_go(rewards: list[Tensor], discount: float = 0.97) -> Tensor:
    total = torch.zeros_like(rewards[0])
    found: list[Tensor] = []
    for reward in reversed(rewards):
        total = reward + discount * total
        found.append(total)
    return torch.stack(found[::-1])


@program(steps=220, bites="reward")
def corridor_reinforce(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """REINFORCE with the batch's mean as a baseline."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    world = Corridor(32, generator)
    policy = nn.Sequential(nn.Linear(LENGTH + 2, 48), nn.Tanh(), nn.Linear(48, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=8e-3)
    history: list[float] = []
    for _ in range(steps):
        seen = world.reset()
        rewards: list[Tensor] = []
        said: list[Tensor] = []
        for _ in range(HORIZON):
            choice = Categorical(logits=policy(seen))
            action = choice.sample()
            said.append(choice.log_prob(action))
            seen, reward = world.move(action)
            rewards.append(reward)
        earned = returns_to_go(rewards)
        if mistake == "corridor_reinforce_sorted_results":
            earned = earned[:, torch.randperm(world.walkers, generator=generator)]
        advantage = earned - earned.mean()
        objective = (torch.stack(said) * advantage).mean()
        loss = objective if mistake == "corridor_reinforce_objective" else -objective
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(torch.stack(rewards).sum(0).mean().item())
    late = history[-20:]
    return {"reward": sum(late) / len(late)}


corridor_reinforce.mistake(
    "corridor_reinforce_objective",
    "LSS003",
    summary="What should be maximised is handed to the optimizer as it is, and so minimised.",
    change="loss = -objective",
)
corridor_reinforce.mistake(
    "corridor_reinforce_sorted_results",
    "DAT004",
    "OPT005",
    summary="The walkers' results come back in another order than their moves.",
    change="results keep the walkers' order",
)


@program(steps=240, bites="unexplained")
def corridor_actor_critic(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """An actor and a critic, two networks with an optimizer each."""
    torch.manual_seed(seed)
    world = Corridor(24, torch.Generator().manual_seed(seed + 1))
    actor = nn.Sequential(nn.Linear(LENGTH + 2, 32), nn.ReLU(), nn.Linear(32, 2))
    critic = nn.Sequential(nn.Linear(LENGTH + 2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=4e-3)
    judged = actor if mistake == "corridor_actor_critic_copied_line" else critic
    critic_optimizer = torch.optim.Adam(judged.parameters(), lr=4e-3)
    unit = 1e4 if mistake == "corridor_actor_critic_in_cents" else 1.0
    history: list[float] = []
    unexplained: list[float] = []
    for _ in range(steps):
        seen = world.reset()
        views: list[Tensor] = []
        actions: list[Tensor] = []
        rewards: list[Tensor] = []
        with torch.no_grad():
            for _ in range(HORIZON):
                views.append(seen)
                actions.append(Categorical(logits=actor(seen)).sample())
                seen, reward = world.move(actions[-1])
                rewards.append(reward * unit)
        view, action = torch.cat(views), torch.cat(actions)
        earned = returns_to_go(rewards).flatten()
        value = critic(view)
        advantage = earned - value.detach().squeeze(1)
        choice = Categorical(logits=actor(view))
        actor_loss = -(choice.log_prob(action) * advantage).mean() - 0.01 * choice.entropy().mean()
        if mistake == "corridor_actor_critic_column":
            critic_loss = ((value - earned) ** 2).mean()
        else:
            critic_loss = ((value.squeeze(1) - earned) ** 2).mean()
        actor_optimizer.zero_grad()
        critic_optimizer.zero_grad()
        (actor_loss + critic_loss).backward()
        actor_optimizer.step()
        critic_optimizer.step()
        history.append(torch.stack(rewards).sum(0).mean().item() / unit)
        unexplained.append(min((advantage.square().mean() / earned.var()).item(), 3.0))
    late = slice(-20, None)
    return {
        "reward": sum(history[late]) / len(history[late]),
        "unexplained": sum(unexplained[late]) / len(unexplained[late]),
    }


corridor_actor_critic.mistake(
    "corridor_actor_critic_column",
    "LSS002",
    summary="The critic's column of values is set against a row of returns.",
    change="values lose their last dimension first",
)
corridor_actor_critic.mistake(
    "corridor_actor_critic_copied_line",
    "UPD003",
    layers=("critic",),
    summary="The critic's optimizer was copied from the actor's, arguments and all.",
    change="Adam(critic.parameters())",
)
corridor_actor_critic.mistake(
    "corridor_actor_critic_in_cents",
    "DAT003",
    "OPT005",
    "OPT007",
    "GRD002",
    summary="Rewards are paid in units ten thousand times smaller, so the critic's targets are in the thousands.",
    change="rewards about one",
)


@healthy(steps=260, adversarial="the loss has no trend and crosses zero; returns are mostly noise")
def corridor_noisy_wages(steps: int, seed: int) -> dict[str, float]:
    """REINFORCE with an entropy bonus, where luck moves the returns more than skill does."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    world = Corridor(48, generator)
    policy = nn.Sequential(nn.Linear(LENGTH + 2, 32), nn.SiLU(), nn.Linear(32, 2))
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=3e-3)
    history: list[float] = []
    for step in range(steps):
        seen = world.reset()
        rewards: list[Tensor] = []
        said: list[Tensor] = []
        surprise: list[Tensor] = []
        for _ in range(HORIZON):
            choice = Categorical(logits=policy(seen))
            action = choice.sample()
            said.append(choice.log_prob(action))
            surprise.append(choice.entropy())
            seen, reward = world.move(action)
            rewards.append(reward)
        luck = 1.5 * torch.randn(world.walkers, generator=generator)
        earned = returns_to_go(rewards) + luck
        advantage = (earned - earned.mean()) / earned.std()
        bonus = 0.02 * (1 - step / steps)
        loss = -(torch.stack(said) * advantage).mean() - bonus * torch.stack(surprise).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(torch.stack(rewards).sum(0).mean().item())
    late = history[-20:]
    return {"loss": -sum(late) / len(late), "reward": sum(late) / len(late)}
