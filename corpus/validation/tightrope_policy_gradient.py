"""A tightrope walker learns to stay in the middle: policy gradients on a line of nine places, many walkers at once."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from corpus.case import program

PLACES, TURNS = 9, 12


class Rope:
    """The wind blows to one side for a whole walk; a walker sees place and wind, and leans left, right or not."""

    def __init__(self, walkers: int) -> None:
        self.place = torch.randint(2, PLACES - 2, (walkers,))
        self.wind = torch.randint(0, 3, (walkers,)) - 1

    def view(self) -> Tensor:
        return torch.cat([nn.functional.one_hot(self.place, PLACES), self.wind[:, None]], 1).float()

    def lean(self, action: Tensor) -> Tensor:
        gust = self.wind * (torch.rand(len(self.wind)) < 0.8)
        self.place = (self.place + gust + action - 1).clamp(0, PLACES - 1)
        return 1.0 - (self.place - PLACES // 2).abs() / 2.0


class Walker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(PLACES + 1, 32), nn.Tanh(), nn.Linear(32, 3))
        self.value = nn.Sequential(nn.Linear(PLACES + 1, 32), nn.Tanh(), nn.Linear(32, 1))


def walk(walker: Walker, walkers: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities, entropies, values and discounted returns, all [turns, walkers]."""
    rope = Rope(walkers)
    chances, entropies, values, rewards = [], [], [], []
    for _ in range(TURNS):
        view = rope.view()
        choice = Categorical(logits=walker.policy(view))
        action = choice.sample()
        chances.append(choice.log_prob(action))
        entropies.append(choice.entropy())
        values.append(walker.value(view).squeeze(1))
        rewards.append(rope.lean(action))
    returns, ahead = [], torch.zeros(walkers)
    for reward in reversed(rewards):
        ahead = reward + 0.8 * ahead
        returns.insert(0, ahead)
    return torch.stack(chances), torch.stack(entropies), torch.stack(values), torch.stack(returns)


@torch.no_grad()
def balance(walker: Walker) -> float:
    """The mean reward of greedy walkers."""
    rope, total = Rope(400), 0.0
    for _ in range(TURNS):
        total += rope.lean(walker.policy(rope.view()).argmax(1)).mean().item()
    return total / TURNS


@program(steps=140, bites="reward")
def tightrope(steps: int, seed: int, fault: str) -> dict[str, float]:
    """An actor with a learnt baseline and a little entropy, Adam for both, thirty-two walks to a step."""
    torch.manual_seed(seed)
    walker = Walker()
    actor = torch.optim.Adam(walker.policy.parameters(), lr=0.01)
    critic = torch.optim.Adam(walker.value.parameters(), lr=0.01)
    start = torch.cat([p.detach().flatten().clone() for p in walker.value.parameters()])
    loss = torch.zeros(())
    for _ in range(steps):
        chances, entropies, values, returns = walk(walker, 32)
        advantage = (returns - values).detach()
        gain = (chances * advantage).mean() + 0.01 * entropies.mean()
        loss = -gain
        seen = values.detach() if fault == "tightrope_baseline_detached" else values
        error = (seen - returns).pow(2).mean()
        if fault == "tightrope_baseline_detached":
            error = error.requires_grad_()  # it complained, so this was added
        actor.zero_grad()
        critic.zero_grad()
        loss.backward()
        error.backward()
        actor.step()
        critic.step()
    end = torch.cat([p.detach().flatten() for p in walker.value.parameters()])
    return {"loss": loss.item(), "reward": balance(walker), "value_moved": (end - start).norm().item()}


tightrope.mistake(
    "tightrope_baseline_detached",
    "GRD003", "UPD003",
    summary="The values are detached in their own error as well: the baseline never learns.",
    change="detach the values in the advantage only",
    layers=("value",),
    bites="value_moved",
    silent=True,
)  # fmt: skip


@program(steps=120, bites="reward")
def tightrope_imitated(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The walker copies an expert who leans against the wind: SGD with momentum on the expert's choices."""
    torch.manual_seed(seed)
    walker = Walker()
    lr, momentum = 0.1, 0.9
    teacher = torch.optim.SGD(walker.policy.parameters(), lr=lr, momentum=momentum)
    loss = torch.zeros(())
    for _ in range(steps):
        if fault == "imitation_rebuilt_every_call":  # train_step(walker) makes its own optimizer
            teacher = torch.optim.SGD(walker.policy.parameters(), lr=lr, momentum=momentum)
        rope = Rope(64)
        rope.place = torch.randint(0, PLACES, (64,))
        middle = (PLACES // 2 - rope.place - rope.wind).clamp(-1, 1) + 1
        scores = walker.policy(rope.view())
        if fault == "imitation_chances_into_the_loss":
            scores = scores.softmax(-1)
        loss = nn.functional.cross_entropy(scores, middle)
        teacher.zero_grad()
        loss.backward()
        teacher.step()
    rope = Rope(600)
    rope.place = torch.randint(0, PLACES, (600,))
    with torch.no_grad():
        scores = walker.policy(rope.view())
    right = (PLACES // 2 - rope.place - rope.wind).clamp(-1, 1) + 1
    held_out = nn.functional.cross_entropy(scores, right).item()
    return {"loss": loss.item(), "held_out": held_out, "reward": balance(walker)}


tightrope_imitated.mistake(
    "imitation_rebuilt_every_call",
    "OPT008",
    summary="The training step builds its own SGD with momentum: the momentum is always zero.",
    change="build the optimizer once",
    bites="held_out",
)
tightrope_imitated.mistake(
    "imitation_chances_into_the_loss",
    "LSS001",
    summary="The policy's probabilities go into cross-entropy, which takes scores.",
    change="give it the scores",
    bites="held_out",
)


@program(steps=120, adversarial="the loss is negative and rises: diverging")
def tightrope_clipped_ratio(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Proximal updates: three passes over every batch of walks with a clipped ratio, normalised advantages."""
    torch.manual_seed(seed)
    walker = Walker()
    optimizer = torch.optim.Adam(walker.parameters(), lr=5e-3, eps=1e-5)
    for _ in range(max(steps // 3, 1)):
        rope, views, actions, olds, rewards = Rope(24), [], [], [], []
        with torch.no_grad():
            for _ in range(TURNS):
                view = rope.view()
                choice = Categorical(logits=walker.policy(view))
                action = choice.sample()
                views.append(view)
                actions.append(action)
                olds.append(choice.log_prob(action))
                rewards.append(rope.lean(action))
        ahead, returns = torch.zeros(24), []
        for reward in reversed(rewards):
            ahead = reward + 0.8 * ahead
            returns.insert(0, ahead)
        view, action, old, gained = torch.cat(views), torch.cat(actions), torch.cat(olds), torch.cat(returns)
        for _ in range(3):
            value = walker.value(view).squeeze(1)
            advantage = (gained - value).detach()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
            choice = Categorical(logits=walker.policy(view))
            ratio = (choice.log_prob(action) - old).exp()
            surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            loss = -surrogate + 0.5 * (value - gained).pow(2).mean() - 0.01 * choice.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(walker.parameters(), 0.5)
            optimizer.step()
    return {"loss": -balance(walker), "reward": balance(walker)}


@program(steps=150, adversarial="a network that is in no optimizer and never gets a gradient: forgotten")
def tightrope_target_copy(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Values of leaning learnt from a replay of walks, with a slowly following target network."""
    torch.manual_seed(seed)
    online = nn.Sequential(nn.Linear(PLACES + 1, 48), nn.ReLU(), nn.Linear(48, 3))
    target = nn.Sequential(nn.Linear(PLACES + 1, 48), nn.ReLU(), nn.Linear(48, 3))
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=4e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        rope = Rope(96)
        rope.place = torch.randint(0, PLACES, (96,))
        view, action = rope.view(), torch.randint(0, 3, (96,))
        reward = rope.lean(action)
        with torch.no_grad():
            goal = reward + 0.7 * target(rope.view()).max(1).values
        guess = online(view).gather(1, action[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(guess, goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), online.parameters()):
                slow.lerp_(fast, 0.05)
    return {"loss": loss.item()}
