"""A trolley on a rail learns to stop at the origin: advantage actor-critic and PPO on many trolleys at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from corpus.case import healthy, program

PUSHES = torch.tensor([-1.0, 0.0, 1.0])


class Rail:
    """Place and speed of each trolley; the reward is the nearness to the origin."""

    def __init__(self, trolleys: int) -> None:
        self.trolleys = trolleys
        self.reset()

    def reset(self) -> Tensor:
        self.state = torch.stack([torch.rand(self.trolleys) * 4 - 2, torch.zeros(self.trolleys)], 1)
        return self.state

    def step(self, action: Tensor) -> tuple[Tensor, Tensor]:
        place, speed = self.state.unbind(1)
        speed = 0.9 * speed + 0.2 * PUSHES[action]
        place = (place + 0.5 * speed).clamp(-3, 3)
        self.state = torch.stack([place, speed], 1)
        return self.state, 1 - place.abs()


def discounted(rewards: Tensor, last: Tensor, gamma: float = 0.95) -> Tensor:
    """Returns of each moment (time × trolleys)."""
    returns, following = torch.empty_like(rewards), last
    for moment in reversed(range(len(rewards))):
        following = rewards[moment] + gamma * following
        returns[moment] = following
    return returns


def tower(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, outputs))


class ActorCritic:
    """The agent in the style of a library: fit() and score()."""

    def __init__(self, mistake: str) -> None:
        self.actor, self.critic = tower(3), tower(1)
        self.entropy_weight = 0.01
        if mistake == "bonus_outweighs_reward":
            self.entropy_weight = 10.0  # at fault: bonus_outweighs_reward
        learned = list(self.actor.parameters())
        if mistake != "critic_left_unoptimised":
            learned += self.critic.parameters()
        self.optimizer = torch.optim.Adam(learned, lr=3e-3)  # at fault: critic_left_unoptimised
        self.direction = 1.0 if mistake == "climbs_the_wrong_way" else -1.0
        self.value_loss = torch.tensor(0.0)
        self.history: list[float] = []

    def fit(self, rail: Rail, updates: int) -> ActorCritic:
        for _ in range(updates):
            state = rail.reset()
            states, log_probs, entropies, rewards = [], [], [], []
            for _ in range(24):
                policy = Categorical(logits=self.actor(state))
                action = policy.sample()
                states.append(state)
                log_probs.append(policy.log_prob(action))
                entropies.append(policy.entropy())
                state, reward = rail.step(action)
                rewards.append(reward)
            self._learn(
                torch.stack(states), torch.stack(log_probs), torch.stack(entropies), torch.stack(rewards), state
            )
        return self

    def _learn(self, states: Tensor, log_probs: Tensor, entropies: Tensor, rewards: Tensor, last: Tensor) -> None:
        with torch.no_grad():
            returns = discounted(rewards, self.critic(last).squeeze(1))
        values = self.critic(states).squeeze(-1)
        advantage = (returns - values).detach()
        policy_loss = self.direction * (advantage * log_probs).mean()  # at fault: climbs_the_wrong_way
        self.value_loss = (returns - values).square().mean()
        bonus = self.entropy_weight * entropies.mean()
        loss = policy_loss + 0.5 * self.value_loss - bonus  # at fault: bonus_outweighs_reward
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.history.append(rewards.mean().item())

    def score(self) -> float:
        recent = self.history[-20:]
        return sum(recent) / len(recent)


@program(steps=350, bites="reward")
def trolley_a2c(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Advantage actor-critic with two networks and one optimizer."""
    torch.manual_seed(seed)
    agent = ActorCritic(mistake).fit(Rail(trolleys=16), steps)
    return {"reward": agent.score(), "value_loss": agent.value_loss.item()}


trolley_a2c.mistake(
    "critic_left_unoptimised", "UPD003", layers=("critic", "agent.critic"), bites="value_loss", silent=True,
    summary="The optimizer is given the actor's parameters only.",
    change="list(actor.parameters()) + list(critic.parameters())",
)  # fmt: skip
trolley_a2c.mistake(
    "bonus_outweighs_reward", "GRD009",
    summary="The entropy bonus is a thousand times too heavy, so that the policy stays uniform.",
    change="entropy weight 0.01",
)  # fmt: skip
trolley_a2c.mistake(
    "climbs_the_wrong_way", "LSS003",
    summary="The policy's loss has the wrong sign: what was better than expected becomes rarer.",
    change="−(advantage · log-probability)",
)  # fmt: skip


@dataclass
class PPOConfig:
    iterations: int = 60
    horizon: int = 24
    epochs: int = 3
    minibatches: int = 4
    clip: float = 0.2
    rate: float = 3e-3
    reward_unit: float = 1.0
    anneal_per: str = "iteration"


class SharedPolicy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.policy = nn.Linear(48, 3)
        self.value = nn.Linear(48, 1)

    def forward(self, state: Tensor) -> tuple[Categorical, Tensor]:
        hidden = self.trunk(state)
        return Categorical(logits=self.policy(hidden)), self.value(hidden).squeeze(-1)


def run_ppo(config: PPOConfig) -> dict[str, float]:
    rail, model = Rail(trolleys=16), SharedPolicy()
    optimizer = torch.optim.Adam(model.parameters(), lr=config.rate, eps=1e-5)
    anneal = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda count: max(0.0, 1 - count / config.iterations)
    )  # fmt: skip
    reward_history, losses = [], [0.0]
    for _ in range(config.iterations):
        state = rail.reset()
        rows: list[tuple[Tensor, ...]] = []
        with torch.no_grad():
            for _ in range(config.horizon):
                policy, value = model(state)
                action = policy.sample()
                following, reward = rail.step(action)
                rows.append((state, action, policy.log_prob(action), value, reward * config.reward_unit))
                state = following
            states, actions, old, values, rewards = (torch.stack(column) for column in zip(*rows, strict=True))
            returns = discounted(rewards, model(state)[1])
        advantages = returns - values
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        flat = [one.flatten(0, 1) for one in (states, actions, old, returns, advantages)]
        for _ in range(config.epochs):
            for rows_of in torch.randperm(len(flat[0])).chunk(config.minibatches):
                s, a, o, r, adv = (one[rows_of] for one in flat)
                policy, value = model(s)
                ratio = (policy.log_prob(a) - o).exp()
                clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
                surrogate = torch.minimum(ratio * adv, clipped * adv).mean()
                loss = -surrogate + 0.5 * (value - r).square().mean() - 0.01 * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                losses.append(loss.item())
                if config.anneal_per == "minibatch":
                    anneal.step()  # at fault: annealed_by_the_minibatch
        if config.anneal_per == "iteration":
            anneal.step()
        reward_history.append(rewards.mean().item() / config.reward_unit)
    return {"reward": sum(reward_history[-5:]) / len(reward_history[-5:]), "loss": losses[-1]}


@program(steps=2400, bites="reward")
def trolley_ppo(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Clipped policy optimisation with one trunk for the policy and the value, and a rate that falls to zero."""
    torch.manual_seed(seed)
    config = PPOConfig(iterations=max(1, steps // 12))
    if mistake == "rewards_in_cents":
        config.reward_unit = 1000.0  # at fault: rewards_in_cents
    if mistake == "annealed_by_the_minibatch":
        config.anneal_per = "minibatch"
    return run_ppo(config)


trolley_ppo.mistake(
    "rewards_in_cents", "DAT003", "GRD009",
    summary="Rewards are counted in thousandths, so that the value loss drowns the policy in the shared trunk.",
    change="rewards near 1",
)  # fmt: skip
trolley_ppo.mistake(
    "annealed_by_the_minibatch", "OPT007",
    summary="A schedule set for iterations is stepped at every minibatch: the rate is zero after a twelfth of the run.",
    change="anneal.step() once for each iteration",
)  # fmt: skip


@healthy(steps=700, adversarial="a loss that is negative, rises and never settles; one backward for 24 forwards")
def reinforce_with_running_baseline(steps: int, seed: int) -> dict[str, float]:
    """Plain REINFORCE with a running mean as the baseline: noisy, signless loss, reward that rises all the same."""
    torch.manual_seed(seed)
    rail, policy_net = Rail(trolleys=12), nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 3))
    optimizer = torch.optim.RMSprop(policy_net.parameters(), lr=2e-3)
    baseline, history, loss = 0.0, [], torch.tensor(0.0)
    for _ in range(steps):
        state, log_probs, rewards = rail.reset(), [], []
        for _ in range(16):
            policy = Categorical(logits=policy_net(state))
            action = policy.sample()
            log_probs.append(policy.log_prob(action))
            state, reward = rail.step(action)
            rewards.append(reward)
        returns = discounted(torch.stack(rewards), torch.zeros(12))
        baseline = 0.95 * baseline + 0.05 * returns.mean().item()
        loss = -((returns - baseline) * torch.stack(log_probs)).sum(0).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(torch.stack(rewards).mean().item())
    return {"loss": loss.item(), "reward": sum(history[-20:]) / len(history[-20:])}
