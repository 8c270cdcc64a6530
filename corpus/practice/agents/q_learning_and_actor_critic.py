"""Learning to act: a chain world with Q-learning, and an actor-critic that balances a pole on paper."""

from __future__ import annotations

import copy
import random
from collections import deque

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from corpus.case import program

Transition = tuple[int, int, float, int, bool]


class Chain:
    """Walk right to the end for the large reward; the small one on the left tempts."""

    length = 8

    def __init__(self, reward: float) -> None:
        self.place, self.clock, self.reward = 0, 0, reward

    def step(self, action: int) -> tuple[float, bool]:
        self.clock += 1
        self.place = max(0, self.place - 1) if action == 0 else self.place + 1
        done = self.place == self.length - 1
        gain = self.reward if done else 0.05 * self.reward if self.place == 0 else 0.0
        return gain, done or self.clock >= 20


class QNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(Chain.length, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))

    def forward(self, places: Tensor) -> Tensor:
        return self.net(nn.functional.one_hot(places, Chain.length).float())


@program(steps=250, bites="error", adversarial="the target network has no gradient and is copied now and then")
def chain_q_learning(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Deep Q-learning with replay, a target network and a Huber loss; the error is that of the values."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    world = Chain(5e4 if fault == "rewards_in_raw_points" else 1.0)
    q_net = QNet()
    target_net = copy.deepcopy(q_net).eval()
    optimizer = torch.optim.RMSprop(
        q_net.parameters(), lr=1e-3, eps=100.0 if fault == "epsilon_of_an_old_paper" else 1e-8
    )
    memory: deque[Transition] = deque(maxlen=2000)
    updates = 0
    while updates < steps:
        place = world.place
        action = int(rng.random() < 0.7)  # any behaviour will do: learning is off-policy
        gain, over = world.step(action)
        memory.append((place, action, gain, world.place, over))
        if over:
            world = Chain(world.reward)
        if len(memory) < 64:
            continue
        s, a, r, s2, end = (torch.tensor(column) for column in zip(*rng.sample(memory, 32)))
        with torch.no_grad():
            goal = r.float() + 0.9 * (~end).float() * target_net(s2).max(1).values
        chosen = q_net(s).gather(1, a[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(chosen, goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        updates += 1
        if updates % 25 == 0:
            target_net.load_state_dict(q_net.state_dict())
    with torch.no_grad():
        values = q_net(torch.arange(Chain.length - 1))[:, 1] / world.reward
    truth = 0.9 ** torch.arange(Chain.length - 2, -1, -1)
    return {"error": (values - truth).abs().mean().item()}


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.actor, self.critic = nn.Linear(64, 4), nn.Linear(64, 1)

    def forward(self, x: Tensor) -> tuple[Categorical, Tensor]:
        h = self.trunk(x)
        return Categorical(logits=self.actor(h)), self.critic(h).squeeze(-1)


@program(steps=200, bites="reward", adversarial="the loss is negative and noisy, and need not fall")
def bandit_actor_critic(steps: int, seed: int, fault: str) -> dict[str, float]:
    """One-step actor-critic with an entropy bonus: the sign of two inputs says which of four actions pays."""
    torch.manual_seed(seed)
    agent = ActorCritic()
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-3)
    weight = 3e4 if fault == "value_loss_drowns_policy" else 0.5
    rewards: list[float] = []
    for _ in range(steps):
        x = torch.randn(64, 6)
        policy, value = agent(x)
        action = policy.sample()
        best = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
        # Most of the reward has nothing to do with the action: the critic has much to learn.
        reward = (action == best).float() + x[:, 2] * x[:, 3] + x[:, 4].square() + 0.5 * torch.randn(64)
        advantage = (reward - value).detach()
        policy_loss = -(policy.log_prob(action) * advantage).mean()
        value_loss = (reward - value).square().mean()
        loss = policy_loss + weight * value_loss - 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
        rewards.append((action == best).float().mean().item())
    return {"reward": sum(rewards[-20:]) / 20}


chain_q_learning.mistake(
    "rewards_in_raw_points",
    "DAT003",
    summary="Rewards of 50,000 points go into the targets as they are: the values never get there.",
    change="scale the rewards to about one",
)
chain_q_learning.mistake(
    "epsilon_of_an_old_paper",
    "OPT008", "UPD002", "OPT007",
    summary="An epsilon of 100 in RMSprop: the divisor is the epsilon, and the steps are next to nothing.",
    change="the default epsilon",
)  # fmt: skip
bandit_actor_critic.mistake(
    "value_loss_drowns_policy",
    "GRD009",
    summary="The value loss has sixty thousand times its weight; with clipping nothing is left for the policy.",
    change="a value weight of 0.5",
)
