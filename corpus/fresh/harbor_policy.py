"""A crane brings containers to their berth: an actor and a critic learn in sixty-four little harbours at once."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional as fn

from corpus.case import healthy, program

MOVES = torch.tensor([[0.25, 0.0], [-0.25, 0.0], [0.0, 0.25], [0.0, -0.25], [0.0, 0.0]])


class Harbour:
    """Positions in a square; the crane is paid for being near the berth and pays for moving."""

    def __init__(self, count: int, seed: int, pay: float = 0.3) -> None:
        self.g = torch.Generator().manual_seed(seed)
        self.count, self.pay = count, pay

    def reset(self) -> Tensor:
        self.crane = 2 * torch.rand(self.count, 2, generator=self.g) - 1
        self.berth = 2 * torch.rand(self.count, 2, generator=self.g) - 1
        return self.observe()

    def observe(self) -> Tensor:
        return torch.cat([self.crane, self.berth - self.crane], dim=1)

    def step(self, action: Tensor) -> tuple[Tensor, Tensor]:
        self.crane = (self.crane + MOVES[action]).clamp(-1, 1)
        distance = (self.crane - self.berth).norm(dim=1)
        return self.observe(), self.pay * (1.0 - 2 * distance - 0.1 * (action != 4).float())


class ActorCritic(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.actor = nn.Linear(width, len(MOVES))
        self.critic = nn.Linear(width, 1)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(seen)
        return self.actor(h), self.critic(h).squeeze(-1)


def harbor_returns(rewards: list[Tensor], last: Tensor, gamma: float = 0.8) -> Tensor:
    total, out = last, []
    for reward in reversed(rewards):
        total = reward + gamma * total
        out.append(total)
    return torch.stack(out[::-1])


@torch.no_grad()
def harbor_score(agent: nn.Module, seed: int) -> float:
    """Mean reward of the last steps of an episode in new harbours, in whole pay."""
    world = Harbour(256, seed + 500, pay=1.0)
    seen, total = world.reset(), 0.0
    for t in range(16):
        logits, _ = agent(seen)
        seen, reward = world.step(Categorical(logits=logits).sample())
        total += reward.mean().item() / 8 if t >= 8 else 0.0
    return total


@program(steps=220, bites="score", adversarial="a loss that does not fall means that nothing is learnt")
def harbor(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A2C: six moves in sixty-four harbours, then one step of Adam."""
    torch.manual_seed(seed)
    agent = ActorCritic()
    world = Harbour(64, seed, pay=3000.0 if fault == "harbor_paid_in_cents" else 0.3)
    optimizer = torch.optim.Adam(agent.parameters(), lr=0.4 if fault == "harbor_impatient" else 6e-3)
    value_weight = 3000.0 if fault == "harbor_critic_shouts" else 0.5
    seen = world.reset()
    for step in range(steps):
        if step % 3 == 0:
            seen = world.reset()
        log_probs, values, rewards, entropies = [], [], [], []
        for _ in range(6):
            logits, value = agent(seen)
            if fault == "harbor_acts_without_grad":
                logits = logits.detach()
            policy = Categorical(logits=logits)
            action = policy.sample()
            seen, reward = world.step(action)
            log_probs.append(policy.log_prob(action))
            values.append(value)
            rewards.append(reward)
            entropies.append(policy.entropy())
        with torch.no_grad():
            returns = harbor_returns(rewards, agent(seen)[1])
        value = torch.stack(values)
        advantage = returns - value.detach()
        policy_loss = -(torch.stack(log_probs) * advantage).mean()
        value_loss = fn.mse_loss(value, returns)
        loss = policy_loss + value_weight * value_loss - 0.01 * torch.stack(entropies).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 1.0)
        optimizer.step()
    return {"loss": loss.item(), "score": harbor_score(agent, seed)}


harbor.mistake(
    "harbor_acts_without_grad",
    "GRD003",
    summary="The logits are detached before the policy is made of them: the actor gets no gradient.",
    change="keep the logits in the graph",
    layers=("actor",),
)
harbor.mistake(
    "harbor_paid_in_cents",
    "DAT003",
    summary="Rewards come ten thousand times too large: the critic can never reach such returns.",
    change="rewards of order one",
)  # fmt: skip
harbor.mistake(
    "harbor_critic_shouts",
    "GRD009",
    summary="The critic's loss is weighted by 3000 and the gradient clipped as a whole: nothing is left for the actor.",
    change="a weight of one half",
)
harbor.mistake(
    "harbor_impatient",
    "OPT007", "UPD001",
    summary="A rate of 0.4 for Adam: after a few steps the policy always takes the same move.",
    change="lr=6e-3",
)  # fmt: skip


@program(steps=200, bites="score", adversarial="the same batch used again is data that are not mixed; a loss near zero")
def harbor_in_small_steps(steps: int, seed: int, fault: str) -> dict[str, float]:
    """PPO: five steps of the optimizer on each roll-out, advantages normalised and ratios clipped."""
    torch.manual_seed(seed)
    agent, world = ActorCritic(), Harbour(64, seed)
    optimizer = torch.optim.Adam(agent.parameters(), lr=4e-3, eps=1e-5)
    before = harbor_score(agent, seed)
    for _ in range(steps // 5):
        seen, frames, actions, rewards = world.reset(), [], [], []
        with torch.no_grad():
            for _ in range(12):
                action = Categorical(logits=agent(seen)[0]).sample()
                frames.append(seen)
                actions.append(action)
                seen, reward = world.step(action)
                rewards.append(reward)
            returns = harbor_returns(rewards, agent(seen)[1]).flatten()
            seen_all, action_all = torch.cat(frames), torch.cat(actions)
            logits, value = agent(seen_all)
            old = Categorical(logits=logits).log_prob(action_all)
            advantage = returns - value
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            if fault == "harbor_advantage_of_a_stranger":
                action_all = action_all.view(12, -1).T.flatten()  # harbours first; the frames have time first
                old = Categorical(logits=logits).log_prob(action_all)
        for _ in range(5):
            logits, value = agent(seen_all)
            ratio = (Categorical(logits=logits).log_prob(action_all) - old).exp()
            gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            loss = 0.5 * fn.mse_loss(value, returns) - gain
            if fault != "harbor_keeps_old_gradients":
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return {"loss": loss.item(), "before": before, "score": harbor_score(agent, seed)}


harbor_in_small_steps.mistake(
    "harbor_advantage_of_a_stranger",
    "DAT004", "OPT005",
    summary="Actions are flattened harbours first, everything else time first: each action gets another one's credit.",
    change="flatten all tensors in the same order",
)  # fmt: skip
harbor_in_small_steps.mistake(
    "harbor_keeps_old_gradients",
    "GRD007",
    summary="No zero_grad in the inner loop of PPO: every step adds to the sum of all gradients so far.",
    change="optimizer.zero_grad() before backward()",
)


@healthy(steps=300, adversarial="a loss around zero, of either sign and full of noise, is no training")
def harbor_by_reinforce(steps: int, seed: int) -> dict[str, float]:
    """REINFORCE without a critic: the mean return of the other harbours is the baseline."""
    torch.manual_seed(seed)
    policy = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, len(MOVES)))
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=4e-3)
    world, early, late = Harbour(32, seed), 0.0, 0.0
    for step in range(steps):
        seen, log_probs, rewards = world.reset(), [], []
        for _ in range(8):
            chances = Categorical(logits=policy(seen))
            action = chances.sample()
            seen, reward = world.step(action)
            log_probs.append(chances.log_prob(action))
            rewards.append(reward)
        returns = harbor_returns(rewards, torch.zeros(32))
        baseline = returns.mean(dim=1, keepdim=True)
        loss = -(torch.stack(log_probs) * (returns - baseline)).sum(0).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = torch.stack(rewards).mean().item()
        early += mean / 20 if step < 20 else 0.0
        late += mean / 20 if step >= steps - 20 else 0.0
    return {"early": early, "late": late, "loss": loss.item()}


@healthy(steps=250, adversarial="gradients that grow while the loss falls below zero are an explosion")
def harbor_through_the_model(steps: int, seed: int) -> dict[str, float]:
    """The harbour is differentiable: the gradient of the reward flows through eight moves; reward is maximised."""
    torch.manual_seed(seed)
    controller = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2), nn.Tanh())
    optimizer = torch.optim.SGD(controller.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    g, first = torch.Generator().manual_seed(seed), 0.0
    for _ in range(steps):
        crane, berth = 2 * torch.rand(2, 32, 2, generator=g) - 1
        reward = torch.zeros(())
        for _ in range(8):
            crane = crane + 0.3 * controller(torch.cat([crane, berth], dim=1))
            reward = reward + (1 - (crane - berth).square().sum(1)).mean()
        loss = -reward
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(controller.parameters(), 1.0)
        optimizer.step()
        first = first or loss.item()
    return {"first": first, "loss": loss.item()}
