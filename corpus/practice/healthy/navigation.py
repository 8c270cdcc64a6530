"""Healthy scripts about finding one's way: a walker, a magnetic field, landmarks, and a map that grows."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from corpus.case import program

DIRECTIONS = 4


def bearings(count: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Where the goal lies, and which of four ways leads there."""
    offset = torch.randn(count, 2, generator=g)
    angle = torch.atan2(offset[:, 1], offset[:, 0])
    return torch.cat([offset, torch.randn(count, 3, generator=g)], 1), ((angle + 3.927) / 1.5708).long() % DIRECTIONS


@program(steps=160, bites="reward", adversarial="a loss around zero of either sign that never falls")
def compass_by_trial(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Several passes over each batch of trials with a clipped ratio and a small reward for staying undecided."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    body = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
    choose, worth = nn.Linear(32, DIRECTIONS), nn.Linear(32, 1)
    model = nn.ModuleDict({"body": body, "choose": choose, "worth": worth})
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    reward, first_reward, loss = torch.zeros(1), 0.0, torch.tensor(0.0)
    for round_number in range(steps // 4):
        view, right = bearings(128, g)
        with torch.no_grad():
            old = torch.distributions.Categorical(logits=choose(body(view)))
            way = old.sample()
            before = old.log_prob(way)
        reward = (way == right).float()
        first_reward = reward.mean().item() if round_number == 0 else first_reward
        for _ in range(4):
            hidden = body(view)
            now = torch.distributions.Categorical(logits=choose(hidden))
            value = worth(hidden).squeeze(1)
            gain = (reward - value).detach()
            ratio = torch.exp(now.log_prob(way) - before)
            policy = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            loss = policy + 0.5 * nn.functional.mse_loss(value, reward) - 0.01 * now.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    return {"loss": loss.item(), "first": first_reward, "reward": reward.mean().item()}


@program(steps=160, bites="loss", adversarial="gradients of gradients, and two terms of different size")
def compass_field(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A potential whose Laplacian must vanish inside a square, known at the rim."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=2e-4)
    history: list[float] = []
    for _ in range(steps):
        inside = torch.rand(64, 2, generator=g).mul(2).sub(1).requires_grad_()
        (slope,) = torch.autograd.grad(net(inside).sum(), inside, create_graph=True)
        bend = torch.zeros(64)
        for axis in range(2):
            (second,) = torch.autograd.grad(slope[:, axis].sum(), inside, create_graph=True)
            bend = bend + second[:, axis]
        rim = torch.rand(64, 2, generator=g).mul(2).sub(1)
        rim[torch.arange(64), torch.randint(2, (64,), generator=g)] = torch.sign(torch.randn(64, generator=g))
        known = rim[:, :1] ** 2 - rim[:, 1:] ** 2
        loss = bend.square().mean() * 0.05 + nn.functional.mse_loss(net(rim), known)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        history.append(loss.item())
    return {"loss": sum(history[-10:]) / 10, "first": history[0]}


@program(steps=150, bites="loss", adversarial="a loss and gradients that are exactly zero for many batches at the end")
def compass_landmarks(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Pictures of the same landmark are pulled together by triplets until every margin is satisfied."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    places = 1.5 * torch.randn(12, 20, generator=g)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 16))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    history: list[float] = []
    for _ in range(steps):
        here = torch.randint(12, (64,), generator=g)
        there = (here + torch.randint(1, 12, (64,), generator=g)) % 12
        shots = [places[i] + 0.6 * torch.randn(64, 20, generator=g) for i in (here, here, there)]
        loss = nn.functional.triplet_margin_loss(*(net(shot) for shot in shots), margin=2.5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    return {"loss": sum(history[-10:]) / 10, "first": history[0]}


@program(steps=180, bites="loss", adversarial="layers that rest for a third of the run and then begin to move again")
def compass_thaws(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Learned on one land for 60 steps, then a new head for another; the body rests and thaws at 120, more slowly."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    body = nn.Sequential(nn.Linear(5, 48), nn.GELU(), nn.Linear(48, 24), nn.GELU())
    head = nn.Linear(24, DIRECTIONS)
    optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()], lr=1e-2)
    history: list[float] = []
    for step in range(steps):
        if step == 60:
            head = nn.Linear(24, DIRECTIONS)
            body.requires_grad_(False)
            optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2)
        if step == 120:
            body.requires_grad_(True)
            optimizer.add_param_group({"params": body.parameters(), "lr": 2e-3})
        view, right = bearings(64, g)
        if step >= 60:
            right = (right + (view[:, 0] > 0).long()) % DIRECTIONS
        loss = nn.functional.cross_entropy(head(body(view)), right)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    return {"loss": sum(history[-10:]) / 10, "first": history[0]}


@program(steps=160, bites="loss", adversarial="targets that move with the network, and a copy that jumps now and then")
def compass_value_of_places(steps: int, seed: int, fault: str) -> dict[str, float]:
    """How far is it from each place: values learned from the next place's value under a copy renewed every 20 steps."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
    frozen = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    values: list[float] = []
    for step in range(steps):
        if step % 20 == 0:
            frozen.load_state_dict(net.state_dict())
        place = torch.rand(96, 2, generator=g) * 2 - 1
        nearer = place * 0.7
        reward = -place.norm(dim=1, keepdim=True)
        target = reward + 0.8 * frozen(nearer)
        loss = nn.functional.smooth_l1_loss(net(place), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return {"loss": sum(values[-10:]) / 10, "first": values[0]}
