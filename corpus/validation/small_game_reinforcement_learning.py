"""Players that learn from rewards on tiny games; each agent is a class that acts and updates."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn.functional import mse_loss, one_hot, smooth_l1_loss

from corpus.case import program

PLACES, MOVES = 9, 2
LEADS_ON = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1, 1])


class Corridor:
    """Many corridors at once: two levers in each place, one of which leads on, and a prize at the far end."""

    def __init__(self, players: int) -> None:
        self.at = torch.randint(PLACES - 1, (players,))

    def view(self) -> Tensor:
        return one_hot(self.at, PLACES).float()

    def step(self, move: Tensor) -> tuple[Tensor, Tensor]:
        self.at = torch.where(move == LEADS_ON[self.at], self.at + 1, self.at - 1).clamp(0, PLACES - 1)
        done = self.at == PLACES - 1
        reward = done.float() - 0.05
        self.at = torch.where(done, torch.randint(PLACES - 1, done.shape), self.at)
        return reward, done


def body(out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(PLACES, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, out))


def play(policy: nn.Module, rounds: int = 40) -> float:
    """The mean reward of the greedy player."""
    world = Corridor(64)
    with torch.no_grad():
        rewards = [world.step(policy(world.view())[:, :MOVES].argmax(1))[0] for _ in range(rounds)]
    return torch.stack(rewards).mean().item()


class Dueling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(PLACES, 32), nn.ReLU())
        self.value, self.advantage = nn.Linear(32, 1), nn.Linear(32, MOVES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.trunk(x)
        a = self.advantage(h)
        return self.value(h) + a - a.mean(1, keepdim=True)


@program(steps=200, bites="reward", adversarial="a loss that rises while the values grow is diverging")
def croupier_values(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Double Q-learning with a dueling head, a replay memory and a target copy renewed every twenty steps."""
    torch.manual_seed(seed)
    online = Dueling()
    target = copy.deepcopy(online).requires_grad_(False)
    optimizer = torch.optim.Adam(online.parameters(), lr=2e-3)
    world, memory = Corridor(16), []
    loss = torch.zeros(())
    for step in range(steps):
        seen = world.view()
        with torch.no_grad():
            greedy = online(seen).argmax(1)
        explore = torch.rand(16) < max(0.1, 1 - step / 80)
        move = torch.where(explore, torch.randint(MOVES, (16,)), greedy)
        reward, done = world.step(move)
        memory = [*memory, (seen, move, reward, done, world.view())][-100:]
        s, a, r, d, after = (torch.cat(part) for part in zip(*memory))
        pick = torch.randint(len(s), (64,))
        with torch.no_grad():
            best = online(after[pick]).argmax(1, keepdim=True)
            goal = r[pick] + 0.9 * (~d[pick]) * target(after[pick]).gather(1, best)[:, 0]
        loss = smooth_l1_loss(online(s[pick]).gather(1, a[pick, None])[:, 0], goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            target.load_state_dict(online.state_dict())
    return {"loss": loss.item(), "reward": play(online)}


def returns(rewards: list[Tensor], dones: list[Tensor], last: Tensor) -> Tensor:
    out, running = [], last
    for r, d in zip(reversed(rewards), reversed(dones)):
        running = r + 0.9 * running * ~d
        out.append(running)
    return torch.stack(out[::-1])


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = body(MOVES), body(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.actor(x)


@program(steps=150, bites="reward", adversarial="a loss of either sign that hovers about nought is not learning")
def croupier_actor_and_critic(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Advantage actor-critic: five moves, one update, an entropy bonus, RMSprop and a clip at a half."""
    torch.manual_seed(seed)
    model = ActorCritic()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3, alpha=0.99, eps=1e-5)
    world = Corridor(24)
    loss = torch.zeros(())
    for _ in range(steps):
        logp, values, entropy, rewards, dones = [], [], [], [], []
        for _ in range(5):
            seen = world.view()
            policy = Categorical(logits=model.actor(seen))
            move = policy.sample()
            logp.append(policy.log_prob(move))
            entropy.append(policy.entropy())
            values.append(model.critic(seen)[:, 0])
            reward, done = world.step(move)
            rewards.append(reward)
            dones.append(done)
        with torch.no_grad():
            goal = returns(rewards, dones, model.critic(world.view())[:, 0])
        advantage = goal - torch.stack(values)
        loss = -(torch.stack(logp) * advantage.detach()).mean() + 0.5 * advantage.pow(2).mean()
        loss = loss - 0.01 * torch.stack(entropy).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return {"loss": loss.item(), "reward": play(model)}


@program(steps=160, bites="reward", adversarial="the first update on every new batch has a loss of about nought")
def croupier_near_the_old_policy(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Proximal policy optimisation: four passes over each rollout, advantages normalised, Adam's eps at 1e-5."""
    torch.manual_seed(seed)
    model = ActorCritic()
    for layer, gain in ((model.actor[4], 0.01), (model.critic[4], 1.0)):
        nn.init.orthogonal_(layer.get_parameter("weight"), gain)
    optimizer = torch.optim.Adam(model.parameters(), lr=2.5e-3, eps=1e-5)
    world = Corridor(24)
    loss, done_steps = torch.zeros(()), 0
    while done_steps < steps:
        frames, moves, rewards, dones = [], [], [], []
        with torch.no_grad():
            for _ in range(8):
                seen = world.view()
                move = Categorical(logits=model.actor(seen)).sample()
                reward, done = world.step(move)
                for log, item in zip((frames, moves, rewards, dones), (seen, move, reward, done)):
                    log.append(item)
            x, a = torch.cat(frames), torch.cat(moves)
            goal = returns(rewards, dones, model.critic(world.view())[:, 0]).flatten()
            old = Categorical(logits=model.actor(x)).log_prob(a)
            advantage = goal - model.critic(x)[:, 0]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        for _ in range(min(4, steps - done_steps)):
            policy = Categorical(logits=model.actor(x))
            ratio = (policy.log_prob(a) - old).exp()
            surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            loss = -surrogate + 0.5 * mse_loss(model.critic(x)[:, 0], goal) - 0.01 * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            done_steps += 1
    return {"loss": loss.item(), "reward": play(model)}


@program(steps=240, bites="gap", adversarial="an actor that has a step only now and then is not updated")
def croupier_twin_critics(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Twin critics and a delayed actor on a one-step continuous game, with soft target copies."""
    torch.manual_seed(seed)
    actor = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1), nn.Tanh())
    critics = nn.ModuleList(nn.Sequential(nn.Linear(3, 48), nn.ReLU(), nn.Linear(48, 1)) for _ in range(2))
    shadow = copy.deepcopy(actor).requires_grad_(False)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=2e-3)
    critic_optimizer = torch.optim.Adam(critics.parameters(), lr=4e-3)

    def best(s: Tensor) -> Tensor:
        return 0.7 * torch.sin(s[:, :1] + s[:, 1:])

    loss = torch.zeros(())
    for step in range(steps):
        s = torch.rand(64, 2) * 3 - 1.5
        with torch.no_grad():
            a = (shadow(s) + 0.4 * torch.randn(64, 1)).clamp(-1, 1)
        reward = 1 - (a - best(s)) ** 2
        loss = sum((mse_loss(critic(torch.cat([s, a], 1)), reward) for critic in critics), torch.zeros(()))
        critic_optimizer.zero_grad()
        loss.backward()
        critic_optimizer.step()
        if step % 2:
            actor_loss = -critics[0](torch.cat([s, actor(s)], 1)).mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(shadow.parameters(), actor.parameters()):
                    slow.lerp_(fast, 0.05)
    s = torch.rand(500, 2) * 3 - 1.5
    return {"loss": loss.item(), "gap": (actor(s) - best(s)).abs().mean().item()}


@program(steps=180, bites="loss")
def croupier_imitates_by_returns(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A decision transformer in miniature: what move, given the return that is asked for and where one stands?"""
    torch.manual_seed(seed)
    world = Corridor(256)
    views, moves, rewards = [], [], []
    for _ in range(12):
        views.append(world.at)
        clever = torch.rand(256) < torch.linspace(0, 1, 256)
        move = torch.where(clever, LEADS_ON[world.at], torch.randint(MOVES, (256,)))
        rewards.append(world.step(move)[0])
        moves.append(move)
    at, move = torch.stack(views, 1), torch.stack(moves, 1)
    togo = torch.stack(rewards, 1).flip(1).cumsum(1).flip(1)

    class Decider(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.place, self.asked = nn.Embedding(PLACES, 32), nn.Linear(1, 32)
            self.before = nn.Embedding(MOVES + 1, 32)
            self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
            self.head = nn.Linear(32, MOVES)

        def forward(self, at: Tensor, togo: Tensor, before: Tensor) -> Tensor:
            x = self.place(at) + self.asked(togo[..., None]) + self.before(before)
            mask = nn.Transformer.generate_square_subsequent_mask(at.shape[1])
            return self.head(self.layer(x, src_mask=mask, is_causal=True))

    model = Decider()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    before = torch.cat([torch.full((256, 1), MOVES), move[:, :-1]], 1)
    loss = torch.zeros(())
    for _ in range(steps):
        rows = torch.randint(256, (32,))
        scores = model(at[rows], togo[rows], before[rows])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), move[rows].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}
