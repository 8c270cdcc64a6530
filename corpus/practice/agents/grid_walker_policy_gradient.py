"""A walker on a grid learns to reach its goal: policy gradients with and without a critic."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from corpus.case import program

GRID, HORIZON, WALKERS = 6, 8, 48
MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.policy = nn.Linear(48, 4)
        self.value = nn.Linear(48, 1)

    def forward(self, obs: Tensor) -> tuple[Categorical, Tensor]:
        h = self.trunk(obs)
        return Categorical(logits=self.policy(h)), self.value(h).squeeze(-1)


class Episode:
    """Many walkers at once; the reward is how much nearer to the goal a move has brought them."""

    def __init__(self) -> None:
        self.here = torch.randint(GRID, (WALKERS, 2))
        self.goal = torch.randint(GRID, (WALKERS, 2))

    def observe(self) -> Tensor:
        return torch.cat([self.here, self.goal], 1).float() / GRID - 0.5

    def move(self, action: Tensor) -> Tensor:
        before = (self.here - self.goal).abs().sum(1)
        self.here = (self.here + MOVES[action]).clamp(0, GRID - 1)
        return (before - (self.here - self.goal).abs().sum(1)).float()


@torch.no_grad()
def roll_out(model: nn.Module) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Observations, actions, their log-probabilities and returns to go, each HORIZON × WALKERS."""
    episode = Episode()
    seen, done, log_probs, rewards = [], [], [], []
    for _ in range(HORIZON):
        obs = episode.observe()
        dist, _ = model(obs)
        action = dist.sample()
        seen.append(obs)
        done.append(action)
        log_probs.append(dist.log_prob(action))
        rewards.append(episode.move(action))
    reward = torch.stack(rewards)
    discounted = torch.zeros(WALKERS)
    returns = torch.zeros_like(reward)
    for t in reversed(range(HORIZON)):
        discounted = reward[t] + 0.8 * discounted
        returns[t] = discounted
    return torch.stack(seen), torch.stack(done), torch.stack(log_probs), returns


def mean_return(model: nn.Module) -> float:
    return sum(roll_out(model)[3][0].mean().item() for _ in range(5)) / 5


@program(steps=120, bites="reward")
def errand_walker(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Advantage actor-critic with a shared trunk and an entropy bonus."""
    torch.manual_seed(seed)
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        obs, action, stored, returns = roll_out(model)
        if fault == "rewards_in_points":
            returns = 500 * returns
        dist, value = model(obs)
        advantage = (returns - value).detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        log_prob = stored if fault == "log_probs_from_the_buffer" else dist.log_prob(action)
        bonus = 0.0 if fault == "log_probs_from_the_buffer" else 0.01 * dist.entropy().mean()
        if fault == "bonus_of_five":
            bonus = 5.0 * dist.entropy().mean()
        loss = -(log_prob * advantage).mean() + 0.5 * (returns - value).square().mean() - bonus
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"reward": mean_return(model)}


errand_walker.mistake(
    "log_probs_from_the_buffer",
    "GRD003",
    summary="The log-probabilities come from the roll-out, which ran without gradients: the policy learns nothing.",
    change="compute them anew",
    layers=("policy",),
)
errand_walker.mistake(
    "rewards_in_points",
    "GRD009", "DAT003",
    summary="Rewards of 500 points: the critic's squared error drowns the policy's term in the shared trunk.",
    change="scale the rewards",
)  # fmt: skip
errand_walker.mistake(
    "bonus_of_five",
    "GRD009", "OPT005", "OPT002",
    summary="The entropy bonus outweighs the reward, so the policy stays uniform.",
    change="a bonus of 0.01",
)  # fmt: skip


class PolicyOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 4))

    def forward(self, obs: Tensor) -> tuple[Categorical, Tensor]:
        return Categorical(logits=self.layers(obs)), torch.zeros(len(obs))


@program(steps=120, bites="reward", adversarial="a loss that is negative, or does not fall, is a fault")
def errand_reinforce(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """REINFORCE with a mean baseline: the loss means nothing and only the reward tells."""
    torch.manual_seed(seed)
    model = PolicyOnly()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        obs, action, _, returns = roll_out(model)
        dist, _ = model(obs)
        loss = -(dist.log_prob(action) * (returns - returns.mean(1, keepdim=True))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"reward": mean_return(model)}


@program(steps=120, bites="reward", adversarial="a parameter that did not move in this step is in no optimizer")
def errand_two_optimizers(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """The critic is fitted three times for each step of the policy, each with an optimizer of its own."""
    torch.manual_seed(seed)
    model = ActorCritic()
    of_policy = torch.optim.Adam([*model.trunk.parameters(), *model.policy.parameters()], lr=5e-3)
    of_critic = torch.optim.SGD(model.value.parameters(), lr=0.02)
    for step in range(steps):
        obs, action, _, returns = roll_out(model)
        if step % 4:
            of_critic.zero_grad()
            (returns - model.value(model.trunk(obs).detach()).squeeze(-1)).square().mean().backward()
            of_critic.step()
            continue
        for _ in range(3):
            dist, value = model(obs)
            advantage = (returns - value).detach()
            of_policy.zero_grad()
            (-(dist.log_prob(action) * advantage).mean() - 0.01 * dist.entropy().mean()).backward()
            of_policy.step()
    return {"reward": mean_return(model)}
