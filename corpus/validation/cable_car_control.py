"""A cable car that must stop at the platform, learnt in four ways that look odd from outside and are not."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program


def drive(place: Tensor, speed: Tensor, push: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One tick: the push changes the speed, the reward is nearness and calm."""
    speed = 0.9 * speed + 0.3 * push
    place = place + 0.3 * speed
    return place, speed, -(place.abs() + 0.1 * speed.abs())


def small_net(outputs: int, act: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 48), act(), nn.Linear(48, 48), act(), nn.Linear(48, outputs))


@program(steps=120, bites="reward", adversarial="the loss has no direction and changes sign: not learning, wrong sign")
def cablecar_actor_critic(steps: int, seed: int, fault: str) -> dict[str, float]:
    """An actor and a critic with optimizers of their own, advantages standardised, forty cars at once."""
    torch.manual_seed(seed)
    actor, critic = small_net(3), small_net(1)
    opt_a = torch.optim.Adam(actor.parameters(), lr=4e-3)
    opt_c = torch.optim.Adam(critic.parameters(), lr=1e-2)
    first = last = 0.0
    for step in range(steps):
        place, speed = torch.randn(40), torch.zeros(40)
        logs: list[Tensor] = []
        values: list[Tensor] = []
        rewards: list[Tensor] = []
        for _ in range(8):
            state = torch.stack([place, speed], 1)
            choice = torch.distributions.Categorical(logits=actor(state))
            move = choice.sample()
            logs.append(choice.log_prob(move))
            values.append(critic(state).squeeze(1))
            place, speed, reward = drive(place, speed, move.float() - 1)
            rewards.append(reward)
        returns: list[Tensor] = []
        ahead = torch.zeros(40)
        for reward in reversed(rewards):
            ahead = reward + 0.9 * ahead
            returns.insert(0, ahead)
        gain, value = torch.stack(returns), torch.stack(values)
        advantage = (gain - value).detach()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        loss_a = -(torch.stack(logs) * advantage).mean()
        loss_c = nn.functional.smooth_l1_loss(value, gain)
        opt_a.zero_grad()
        loss_a.backward()
        opt_a.step()
        opt_c.zero_grad()
        loss_c.backward()
        opt_c.step()
        reward = torch.stack(rewards).mean().item()
        first = reward if step == 0 else first
        last = reward if step == 0 else 0.9 * last + 0.1 * reward
    return {"loss": -last, "first": -first, "reward": last}


@program(steps=150, bites="reward", adversarial="a copy of the network has no gradient and jumps every twenty steps")
def cablecar_q_values(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Q-learning from a store of drives, with a target network that is copied now and then."""
    torch.manual_seed(seed)
    online, target = small_net(3, nn.ReLU), small_net(3, nn.ReLU)
    target.load_state_dict(online.state_dict())
    target.requires_grad_(False)
    optimizer = torch.optim.Adam(online.parameters(), lr=2e-3)
    place, speed = 1.5 * torch.randn(2000), torch.randn(2000)
    move = torch.randint(3, (2000,))
    next_place, next_speed, reward = drive(place, speed, move.float() - 1)
    state, after = torch.stack([place, speed], 1), torch.stack([next_place, next_speed], 1)
    first = smooth = 0.0
    for step in range(steps):
        pick = torch.randint(2000, (64,))
        with torch.no_grad():
            goal = reward[pick] + 0.8 * target(after[pick]).max(1).values
        guess = online(state[pick]).gather(1, move[pick, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(guess, goal)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(online.parameters(), 5.0)
        optimizer.step()
        if step % 20 == 19:
            target.load_state_dict(online.state_dict())
        first = loss.item() if step == 0 else first
        smooth = loss.item() if step == 0 else 0.9 * smooth + 0.1 * loss.item()
    with torch.no_grad():
        place, speed, total = torch.linspace(-2, 2, 50), torch.zeros(50), 0.0
        for _ in range(10):
            best = online(torch.stack([place, speed], 1)).argmax(1)
            place, speed, gain = drive(place, speed, best.float() - 1)
            total += gain.mean().item() / 10
    return {"loss": smooth, "first": first, "reward": total}


@program(steps=120, bites="reward")
def cablecar_through_the_model(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The physics is differentiable, so the policy learns straight through twelve ticks of it."""
    torch.manual_seed(seed)
    policy = small_net(1)
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
    first = last = 0.0
    for step in range(steps):
        place, speed = torch.randn(40), torch.zeros(40)
        total = torch.zeros(())
        for _ in range(12):
            push = torch.tanh(policy(torch.stack([place, speed], 1))).squeeze(1)
            place, speed, reward = drive(place, speed, push)
            total = total + reward.mean() / 12
        optimizer.zero_grad()
        (-total).backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        first = total.item() if step == 0 else first
        last = total.item() if step == 0 else 0.9 * last + 0.1 * total.item()
    return {"loss": -last, "first": -first, "reward": last}


@program(steps=140, adversarial="the old layers never move and are in no optimizer: parameter never updated")
def cablecar_second_line(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A model of one line's physics is trained, then frozen; a small correction learns the second line."""
    torch.manual_seed(seed)
    base = small_net(2)
    settle = torch.optim.Adam(base.parameters(), lr=5e-3)
    for _ in range(60):
        state = torch.randn(128, 2)
        place, speed, _ = drive(state[:, 0], state[:, 1], torch.zeros(128))
        loss = nn.functional.mse_loss(base(state), torch.stack([place, speed], 1))
        settle.zero_grad()
        loss.backward()
        settle.step()
    base.requires_grad_(False)
    last = nn.Linear(24, 2)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    correction = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), last)
    optimizer = torch.optim.Adam(correction.parameters(), lr=1e-2)
    first = smooth = 0.0
    for step in range(max(1, steps - 60)):
        state = torch.randn(128, 2)
        place, speed, _ = drive(state[:, 0], state[:, 1], 2.5 * torch.sin(2 * state[:, 0]))
        loss = nn.functional.mse_loss(base(state) + correction(state), torch.stack([place, speed], 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = loss.item() if step == 0 else first
        smooth = loss.item() if step == 0 else 0.9 * smooth + 0.1 * loss.item()
    return {"loss": smooth, "first": first}
