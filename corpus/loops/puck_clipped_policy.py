"""A puck is pushed to a mark on a table: proximal policy optimisation with a clipped ratio."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from corpus.case import program

EPOCHS = 4
HORIZON = 14


class Table:
    """Pucks with a position and a speed; a push is an acceleration. Lengths are metres."""

    def __init__(self, pucks: int, generator: torch.Generator) -> None:
        self.pucks, self.generator = pucks, generator
        self.reset()

    def reset(self) -> Tensor:
        self.at = torch.rand(self.pucks, 2, generator=self.generator) * 2 - 1
        self.mark = torch.rand(self.pucks, 2, generator=self.generator) * 2 - 1
        self.speed = torch.zeros(self.pucks, 2)
        return self.observe()

    def observe(self) -> Tensor:
        return torch.cat([self.mark - self.at, self.speed, self.mark], 1)

    def push(self, force: Tensor) -> tuple[Tensor, Tensor]:
        self.speed = 0.6 * self.speed + 0.25 * force.clamp(-1, 1)
        self.at = (self.at + self.speed).clamp(-2, 2)
        return self.observe(), -(self.at - self.mark).norm(dim=1)


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 2))
        self.value = nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 1))
        self.log_std = nn.Parameter(torch.full((2,), -0.5))

    def act(self, seen: Tensor) -> Normal:
        return Normal(self.policy(seen), self.log_std.exp())


def advantages(rewards: Tensor, values: Tensor, last: Tensor) -> Tensor:
    """Generalised advantage estimates."""
    running = torch.zeros_like(last)
    out = torch.zeros_like(rewards)
    following = last
    for time in reversed(range(len(rewards))):
        error = rewards[time] + 0.95 * following - values[time]
        running = error + 0.95 * 0.9 * running
        out[time] = running
        following = values[time]
    return out


@program(steps=400, bites="distance")
def puck_clipped_ratio(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Rounds of play, and after each four passes over what was played."""
    torch.manual_seed(seed)
    table = Table(32, torch.Generator().manual_seed(seed + 1))
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-3)
    unit = 1000.0 if mistake == "puck_in_millimetres" else 1.0
    taken = 0
    played: list[float] = []
    for _ in range(max(1, steps // EPOCHS)):
        seen = table.reset() * unit
        views: list[Tensor] = []
        forces: list[Tensor] = []
        rewards: list[Tensor] = []
        with torch.no_grad():
            for _ in range(HORIZON):
                views.append(seen)
                forces.append(agent.act(seen).sample())
                seen, reward = table.push(forces[-1])
                seen = seen * unit
                rewards.append(reward)
            view, force = torch.stack(views), torch.stack(forces)
            value = agent.value(view).squeeze(-1)
            advantage = advantages(torch.stack(rewards), value, agent.value(seen).squeeze(-1))
            goal = advantage + value
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
            before = agent.act(view).log_prob(force).sum(-1)
        for _ in range(EPOCHS):
            for group in optimizer.param_groups:
                group["lr"] = 3e-3 * (1 - 0.7 * taken / max(steps, 400))
                if mistake == "puck_second_table" and taken >= 240:
                    group["lr"] = 0.2
            choice = agent.act(view)
            now = choice.log_prob(force).sum(-1)
            old = now if mistake == "puck_same_ratio" else before
            ratio = (now - old).exp()
            gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            error = (agent.value(view).squeeze(-1) - goal).square().mean()
            loss = -gain + 0.5 * error - 0.002 * choice.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 1.0)
            optimizer.step()
            taken += 1
        played.append(-torch.stack(rewards)[HORIZON // 2 :].mean().item())
    late = played[-8:]
    return {"distance": sum(late) / len(late)}


puck_clipped_ratio.mistake(
    "puck_same_ratio",
    "GRD004",
    layers=("policy",),
    summary="The old log-probability is the new one itself, so the ratio is one and its gradient nothing.",
    change="the old log-probabilities are those of the round that was played",
)
puck_clipped_ratio.mistake(
    "puck_second_table",
    "OPT007",
    "UPD001",
    "OPT001",
    onset=240,
    summary="In the last part of its schedule the learning rate is seventy times what it was.",
    change="the rate falls to the end",
)
puck_clipped_ratio.mistake(
    "puck_in_millimetres",
    "DAT001",
    "ACT002",
    summary="The table reports millimetres.",
    change="metres",
)
