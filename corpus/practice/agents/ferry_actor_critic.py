"""A ferry must stop at the pier: an actor and a critic learn from short crossings, everything in one script."""

from __future__ import annotations

import torch
import torch.nn as nn
from torch import Tensor
from torch.distributions import Categorical

from corpus.case import program

BOATS, HORIZON, DISCOUNT = 48, 10, 0.9


def launch(g: torch.Generator) -> Tensor:
    """Distance from the pier, speed, and how much of the crossing is left."""
    boat = torch.randn(BOATS, 3, generator=g) * torch.tensor([1.0, 0.3, 0.0])
    boat[:, 2] = 1.0
    return boat


def sail(boat: Tensor, rudder: Tensor) -> tuple[Tensor, Tensor]:
    thrust = (rudder - 1).float() * 0.35
    speed = 0.9 * boat[:, 1] + thrust
    place = boat[:, 0] + 0.5 * speed
    return torch.stack([place, speed, boat[:, 2] - 1 / HORIZON], 1), -(place.abs() + 0.2 * speed.abs())


def net(out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 48), nn.Tanh(), nn.Linear(48, out))


def crossing(actor: nn.Module, g: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    boat, boats, logps, rewards, entropies = launch(g), [], [], [], []
    for _ in range(HORIZON):
        choice = Categorical(logits=actor(boat))
        rudder = torch.multinomial(choice.probs, 1, generator=g).squeeze(1)
        boats.append(boat)
        logps.append(choice.log_prob(rudder))
        entropies.append(choice.entropy())
        boat, reward = sail(boat, rudder)
        rewards.append(reward)
    returns, running = [], torch.zeros(BOATS)
    for reward in reversed(rewards):
        running = reward + DISCOUNT * running
        returns.insert(0, running)
    return torch.stack(boats), torch.stack(logps), torch.stack(returns), torch.stack(entropies)


@program(steps=120, bites="critic_error")
def ferry(steps: int, seed: int, fault: str) -> dict[str, float]:
    """One optimizer for both nets; the critic's estimate is subtracted before the actor sees the return."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = nn.ModuleDict({"actor": net(3), "critic": net(1)})
    actor, critic = model["actor"], model["critic"]
    learned = actor.parameters() if fault == "ferry_critic_left_ashore" else model.parameters()
    opt = torch.optim.Adam(learned, lr=8e-3)
    mean_return, error = 0.0, 0.0
    for _ in range(steps):
        boats, logps, returns, entropies = crossing(actor, g)
        advantage = returns - critic(boats).squeeze(-1)
        if fault == "ferry_detached_twice":
            advantage = advantage.detach()
        actor_loss = -(advantage.detach() * logps).mean() - 0.01 * entropies.mean()
        critic_loss = advantage.pow(2).mean()
        loss = actor_loss + 0.5 * critic_loss
        opt.zero_grad()
        loss.backward()
        opt.step()
        mean_return = returns[0].mean().item()
        error = (critic_loss / (critic_loss + returns.var())).item()
    return {"return": mean_return, "critic_error": error}


ferry.mistake(
    "ferry_detached_twice",
    "GRD003", "UPD003",
    summary="The advantage is detached once for both losses: the critic's loss is a number, the critic never learns.",
    change="detach it for the actor only",
    layers=("critic", "model.critic"),
)  # fmt: skip
ferry.mistake(
    "ferry_critic_left_ashore",
    "UPD003",
    summary="Only the actor's parameters were given to the optimizer.",
    change="give it both",
    layers=("critic", "model.critic"),
)


@program(steps=240, bites="critic_error")
def ferry_two_logs(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Actor and critic have an optimizer each and step one after the other in the same crossing."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    actor, critic = net(3), net(1)
    opt_actor = torch.optim.Adam(actor.parameters(), lr=8e-3)
    opt_critic = torch.optim.Adam(critic.parameters(), lr=0.02)
    mean_return, error = 0.0, 0.0
    for i in range(steps // 2):
        boats, logps, returns, entropies = crossing(actor, g)
        value = critic(boats).squeeze(-1)
        critic_loss = nn.functional.mse_loss(value, returns)
        if fault != "ferry_critic_never_cleared" or i < 20:
            opt_critic.zero_grad()
        critic_loss.backward()
        opt_critic.step()
        opt_actor.zero_grad()
        (-((returns - value.detach()) * logps).mean() - 0.01 * entropies.mean()).backward()
        opt_actor.step()
        mean_return = returns[0].mean().item()
        error = 0.95 * error + 0.05 * (critic_loss / (critic_loss + returns.var())).item()
    return {"return": mean_return, "critic_error": error}


ferry_two_logs.mistake(
    "ferry_critic_never_cleared",
    "GRD007",
    summary="After twenty crossings another branch runs, which clears the actor's gradients and not the critic's.",
    change="clear the critic's gradients too",
    layers=("critic", "model.critic"),
    onset=40,
)


@program(steps=120, bites="surprise", adversarial="a net that is random, frozen and never updated was forgotten")
def ferry_curious(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A predictor learns what a frozen random net says about a place: the error tells how new the place is."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    strange = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 8)).requires_grad_(False)
    predictor = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))
    opt = torch.optim.Adam(predictor.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        boat = launch(g)
        for _wave in range(3):
            boat, _ = sail(boat, torch.randint(3, (BOATS,), generator=g))
        with torch.no_grad():
            target = strange(boat)
        loss = nn.functional.mse_loss(predictor(boat), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"surprise": loss.item()}


@program(steps=250, bites="return", adversarial="a loss that does not fall means that nothing is learnt")
def ferry_by_values(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Fitted values of actions with a slowly following target net: the loss wanders, the returns rise."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    online, target = net(3), net(3).requires_grad_(False)
    target.load_state_dict(online.state_dict())
    opt = torch.optim.Adam(online.parameters(), lr=8e-3)
    boat = launch(g)
    for step in range(steps):
        if step % HORIZON == 0:
            boat = launch(g)
        with torch.no_grad():
            best = online(boat).argmax(1)
        chance = torch.rand(BOATS, generator=g) < max(0.2, 1 - step / 150)
        rudder = torch.where(chance, torch.randint(3, (BOATS,), generator=g), best)
        after, reward = sail(boat, rudder)
        with torch.no_grad():
            goal = 0.2 * reward + DISCOUNT * target(after).amax(1)
        said = online(boat).gather(1, rudder[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(said, goal)
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for slow, quick in zip(target.parameters(), online.parameters()):
                slow.lerp_(quick, 0.1)
        boat = after
    boat, total = launch(g), 0.0
    for _ in range(HORIZON):
        with torch.no_grad():
            boat, reward = sail(boat, online(boat).argmax(1))
        total += reward.mean().item()
    return {"return": total}
