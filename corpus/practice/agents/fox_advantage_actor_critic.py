"""Advantage actor-critic by hand: a fox on a line of nine fields looks for its hole, 48 foxes at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - as its users write it
from torch import Tensor, nn

from corpus.case import program

FIELDS, FOXES, HORIZON = 9, 48, 8


class Meadow:
    """The hole is at a random place that the fox sees; a step costs a little, the hole gives one."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self.fox, self.hole = self._places(FOXES), self._places(FOXES)

    def _places(self, count: int) -> Tensor:
        return torch.randint(FIELDS, (count,), generator=self.generator)

    def observe(self) -> Tensor:
        return torch.cat([F.one_hot(self.fox, FIELDS), F.one_hot(self.hole, FIELDS)], 1).float()

    def act(self, action: Tensor) -> Tensor:
        self.fox = (self.fox + action - 1).clamp(0, FIELDS - 1)  # left, stay, right
        found = self.fox == self.hole
        self.fox = torch.where(found, self._places(FOXES), self.fox)
        self.hole = torch.where(found, self._places(FOXES), self.hole)
        return found.float() - 0.02


class Fox(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2 * FIELDS, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.policy = nn.Linear(64, 3)
        self.value = nn.Linear(64, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        return self.policy(h), self.value(h).squeeze(-1)


@program(steps=160, bites="reward")
def foxhole(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Actor-critic on a line, one shared body, Adam, gradients clipped at a half."""
    torch.manual_seed(seed)
    meadow = Meadow(torch.Generator().manual_seed(seed))
    fox = Fox()
    optimizer = torch.optim.Adam(fox.parameters(), lr=4e-3)
    earned: list[float] = []
    for step in range(steps):
        log_probs, values, rewards, entropies = [], [], [], []
        for _ in range(HORIZON):
            logits, value = fox(meadow.observe())
            choice = torch.distributions.Categorical(logits=logits)
            action = choice.sample()
            log_prob = choice.log_prob(action)
            if fault == "fox_stored_log_probs" and step >= 40:  # a buffer of numbers, from a refactoring
                log_prob = torch.tensor(log_prob.tolist())
            log_probs.append(log_prob)
            values.append(value)
            entropies.append(choice.entropy())
            rewards.append(meadow.act(action) * (1000.0 if fault == "fox_rewards_of_a_thousand" else 1.0))
        earned.append(torch.stack(rewards).mean().item())
        with torch.no_grad():
            _, ahead = fox(meadow.observe())
        returns: list[Tensor] = []
        for reward in reversed(rewards):
            ahead = reward + 0.9 * ahead
            returns.insert(0, ahead)
        value, target = torch.stack(values), torch.stack(returns)
        advantage = (target - value).detach()
        if fault != "fox_rewards_of_a_thousand":
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        entropy = 3.0 if fault == "fox_entropy_of_three" else 0.01
        actor = -(torch.stack(log_probs) * advantage).mean() - entropy * torch.stack(entropies).mean()
        if fault == "fox_stored_log_probs" and step >= 40:
            actor = -(torch.stack(log_probs) * advantage).mean()
        loss = actor + 0.5 * F.mse_loss(value, target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(fox.parameters(), 0.5)
        optimizer.step()
    reward = sum(earned[-25:]) / len(earned[-25:])
    return {"reward": reward / (1000.0 if fault == "fox_rewards_of_a_thousand" else 1.0), "first": earned[0]}


foxhole.mistake(
    "fox_rewards_of_a_thousand",
    "DAT003", "GRD009", "GRD010",
    summary="The rewards count a thousand points: the critic's error drowns the policy in the shared body.",
    change="rewards of about one, advantages normalised",
)  # fmt: skip
foxhole.mistake(
    "fox_entropy_of_three",
    "GRD009", "OPT005", "OPT002",
    summary="The entropy bonus weighs three instead of a hundredth: the fox is paid for walking at random.",
    change="a bonus of 0.01",
)  # fmt: skip
foxhole.mistake(
    "fox_stored_log_probs",
    "GRD003", "UPD003",
    summary="From step 40 on the log-probabilities are numbers from a buffer: the policy gets no gradient.",
    change="keep the tensors",
    layers=("policy",),
    onset=40,
)  # fmt: skip
