"""A marble on a seesaw: tilt it left or right so that the marble stays. Values and policies learnt by trial."""

from __future__ import annotations

import math
from collections import deque

import torch
from torch import Tensor, nn

from corpus.case import program

BOARDS = 32  # seesaws side by side


def tilt(state: Tensor, action: Tensor, g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Position and speed after a moment; the reward is for being near the middle; who falls off begins again."""
    push = action.float() * 2 - 1
    speed = state[:, 1] + 0.12 * push + 0.08 * state[:, 0] + 0.02 * torch.randn(len(state), generator=g)
    place = state[:, 0] + 0.3 * speed
    fell = place.abs() > 1.2
    reward = torch.where(fell, -1.0, 1.0 - place.abs())
    moved = torch.stack([place, speed], 1)
    fresh = 0.3 * torch.randn(moved.shape, generator=g)
    return torch.where(fell[:, None], fresh, moved), reward, fell


def mind(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, outputs))


def minutes_on_the_board(choose, seed: int) -> float:
    """The mean reward of sixty moments of greedy play."""
    g = torch.Generator().manual_seed(seed + 2000)
    state, total = 0.3 * torch.randn(64, 2, generator=g), 0.0
    with torch.no_grad():
        for _ in range(60):
            state, reward, _ = tilt(state, choose(state), g)
            total += reward.mean().item() / 60
    return total


@program(steps=200, bites="reward", adversarial="a loss that grows is diverging")
def seesaw_values(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Q-learning with a memory and a copy of the network for the targets, refreshed every twenty steps."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    net, copy = mind(2), mind(2)
    copy.load_state_dict(net.state_dict())
    eps = 1.0 if fault == "seesaw_eps_from_the_atari_paper" else 1e-8
    adam = torch.optim.Adam(net.parameters(), lr=4e-3, eps=eps)
    memory: deque[tuple[Tensor, ...]] = deque(maxlen=150)
    state = 0.3 * torch.randn(BOARDS, 2, generator=g)
    loss = torch.zeros(())
    for step in range(steps):
        for _ in range(2):
            with torch.no_grad():
                best = net(state).argmax(1)
            bold = torch.rand(BOARDS, generator=g) < max(0.1, 1 - step / 80)
            action = torch.where(bold, torch.randint(2, (BOARDS,), generator=g), best)
            after, reward, fell = tilt(state, action, g)
            memory.append((state, action, reward, after, fell))
            state = after
        picks = torch.randint(len(memory), (4,), generator=g).tolist()
        s, a, r, n, f = (torch.cat(part) for part in zip(*(memory[k] for k in picks)))
        with torch.no_grad():
            target = r + 0.9 * copy(n).max(1).values * (~f)
        loss = nn.functional.smooth_l1_loss(net(s).gather(1, a[:, None]).squeeze(1), target)
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        adam.step()
        if step % 20 == 19:
            copy.load_state_dict(net.state_dict())
    return {"loss": loss.item(), "reward": minutes_on_the_board(lambda s: net(s).argmax(1), seed)}


seesaw_values.mistake(
    "seesaw_eps_from_the_atari_paper",
    "OPT008", "UPD002", "OPT005", "OPT007",
    summary="Adam's eps is 1, copied from the settings of another optimizer: its steps are tiny.",
    change="eps=1e-8",
)  # fmt: skip


@program(steps=160, bites="reward", adversarial="a loss that goes up and down around zero does not learn")
def seesaw_policy(steps: int, seed: int, fault: str) -> dict[str, float]:
    """An actor and a critic with one optimizer; advantages are standardised, so that the loss means nothing."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    actor, critic = mind(2), mind(1)
    adam = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=4e-3)
    state = 0.3 * torch.randn(BOARDS, 2, generator=g)
    loss = torch.zeros(())
    for _ in range(steps):
        states, actions, rewards, falls = [], [], [], []
        for _ in range(8):
            with torch.no_grad():
                action = torch.multinomial(actor(state).softmax(-1), 1, generator=g).squeeze(1)
            after, reward, fell = tilt(state, action, g)
            states.append(state)
            actions.append(action)
            rewards.append(reward)
            falls.append(fell)
            state = after
        with torch.no_grad():
            value = critic(state).squeeze(1)
            returns = []
            for reward, fell in zip(reversed(rewards), reversed(falls)):
                value = reward + 0.9 * value * (~fell)
                returns.append(value)
        s, a, target = torch.cat(states), torch.cat(actions), torch.cat(returns[::-1])
        guess = critic(s).squeeze(1)
        gain = (target - guess).detach()
        gain = (gain - gain.mean()) / (gain.std() + 1e-6)
        chance = actor(s).log_softmax(-1)
        entropy = -(chance.exp() * chance).sum(1).mean()
        policy = -(gain * chance.gather(1, a[:, None]).squeeze(1)).mean()
        loss = policy + 0.5 * nn.functional.mse_loss(guess, target) - 0.01 * entropy
        adam.zero_grad()
        loss.backward()
        adam.step()
    final = loss.item()
    reward = minutes_on_the_board(lambda s: actor(s).argmax(1), seed)
    return {"loss": final if math.isfinite(final) else 1e6, "reward": reward}
