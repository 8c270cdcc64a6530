"""Healthy: methods that bend the usual loop. Two passes per step, three optimizers, local losses, inner loops."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.func import functional_call

from corpus.case import program


def rings(n: int) -> tuple[Tensor, Tensor]:
    y = torch.randint(3, (n,))
    x = torch.randn(n, 8)
    return F.normalize(x, dim=1) * (1 + y[:, None]) + 0.15 * torch.randn(n, 8), y


def net(outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))


@program(steps=120, adversarial="weights are moved, and moved back, between two backward passes of a step")
def sharpness_aware(steps: int, seed: int, fault: str) -> dict[str, float]:
    """SAM by hand: climb a little, take the gradient there, climb down, step."""
    torch.manual_seed(seed)
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x, y = rings(64)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        gradients = [p.grad.clone() if p.grad is not None else torch.zeros_like(p) for p in model.parameters()]
        scale = 0.02 / (torch.sqrt(sum((g.square().sum() for g in gradients), torch.tensor(0.0))) + 1e-12)
        with torch.no_grad():
            for p, g in zip(model.parameters(), gradients):
                p.add_(g * scale)
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p, g in zip(model.parameters(), gradients):
                p.sub_(g * scale)
        opt.step()
    return {"loss": loss.item()}


class LocalBlocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(a, 48), nn.ReLU()) for a in (8, 48, 48))
        self.heads = nn.ModuleList(nn.Linear(48, 3) for _ in range(3))

    def forward(self, x: Tensor) -> list[Tensor]:
        outputs = []
        for block, head in zip(self.blocks, self.heads):
            x = block(x.detach())
            outputs.append(head(x))
        return outputs


@program(steps=150, adversarial="detach between all blocks, on purpose: each has its own loss")
def greedy_local_learning(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Three blocks, each trained by a head of its own; no gradient flows between blocks."""
    torch.manual_seed(seed)
    model = LocalBlocks()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x, y = rings(64)
        loss = torch.stack([F.cross_entropy(out, y) for out in model(x)]).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = net(2)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.body(state).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-3, 1).exp())
        raw = normal.rsample()
        action = torch.tanh(raw)
        return action, normal.log_prob(raw) - torch.log(1 - action.square() + 1e-6)


class Value(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(9, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        return self.body(torch.cat([state, action], 1))


@program(
    steps=240, adversarial="three optimizers in turn, the critic collects gradients it never asked for, negative losses"
)
def soft_actor_critic(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Critic, actor and temperature have an optimizer each; the actor's loss passes through the critic."""
    torch.manual_seed(seed)
    policy, value = Policy(), Value()
    log_alpha = nn.Parameter(torch.zeros(()))
    opt_value = torch.optim.Adam(value.parameters(), lr=3e-3)
    opt_policy = torch.optim.Adam(policy.parameters(), lr=3e-3)
    opt_alpha = torch.optim.Adam([log_alpha], lr=1e-2)
    loss = torch.tensor(0.0)
    for _ in range(steps // 3):
        state = torch.randn(64, 8)
        with torch.no_grad():
            action, _ = policy(state)
        reward = -(action - torch.tanh(state[:, :1])).square() + 0.1 * torch.randn(64, 1)
        loss = F.mse_loss(value(state, action), reward)
        opt_value.zero_grad()
        loss.backward()
        opt_value.step()
        action, log_prob = policy(state)
        opt_policy.zero_grad()
        (log_alpha.exp().detach() * log_prob - value(state, action)).mean().backward()
        opt_policy.step()
        opt_alpha.zero_grad()
        (-log_alpha.exp() * (log_prob.detach() - 1.0).mean()).backward()
        opt_alpha.step()
    return {"loss": loss.item()}


@program(
    steps=80, adversarial="second-order gradients through an inner loop; the loss of a task says little about the next"
)
def meta_learning(steps: int, seed: int, fault: str) -> dict[str, float]:
    """MAML on sine waves: one inner step by `autograd.grad` with a graph, the outer step by Adam."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    total = torch.tensor(0.0)
    for _ in range(steps):
        total = torch.tensor(0.0)
        for _ in range(4):
            height, phase = 0.5 + 2 * torch.rand(1), 3 * torch.rand(1)
            x, test = 6 * torch.rand(10, 1) - 3, 6 * torch.rand(10, 1) - 3
            weights: dict[str, Tensor] = dict(model.named_parameters())
            inner = F.mse_loss(functional_call(model, weights, (x,)), height * torch.sin(x + phase))
            gradients = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            adapted = {name: w - 0.05 * g for (name, w), g in zip(weights.items(), gradients)}
            total = total + F.mse_loss(functional_call(model, adapted, (test,)), height * torch.sin(test + phase)) / 4
        opt.zero_grad()
        total.backward()
        opt.step()
    return {"loss": total.item()}


class Energy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))

    def score(self, x: Tensor) -> Tensor:
        x = x.requires_grad_(True)
        return -torch.autograd.grad(self.body(x).sum(), x, create_graph=True)[0]


@program(steps=150, adversarial="the last bias of an energy has no gradient at all: only differences count")
def score_matching(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Denoising score matching through the gradient of an energy network."""
    torch.manual_seed(seed)
    model = Energy()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        clean = torch.randn(128, 2) * torch.tensor([1.0, 0.3])
        noise = torch.randn(128, 2)
        loss = (model.score(clean + 0.3 * noise) * 0.3 + noise).square().sum(1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


class HyperNetwork(nn.Module):
    """A network that writes the weights of another one."""

    def __init__(self) -> None:
        super().__init__()
        self.task = nn.Embedding(6, 8)
        self.writer = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8 * 16 + 16))

    def forward(self, x: Tensor, task: Tensor) -> Tensor:
        weights = 0.3 * self.writer(self.task(task))
        first, second = weights[:, :128].view(-1, 8, 16), weights[:, 128:]
        return (torch.tanh(torch.einsum("ni,nij->nj", x, first)) * second).sum(1)


@program(steps=200)
def hypernetwork(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Six regression tasks; an embedding of the task writes the weights. Reduce on plateau."""
    torch.manual_seed(seed)
    slopes = torch.randn(6, 8, generator=torch.Generator().manual_seed(6)) / 3
    model = HyperNetwork()
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=20)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        task, x = torch.randint(6, (64,)), torch.randn(64, 8)
        loss = F.mse_loss(model(x, task), torch.tanh((x * slopes[task]).sum(1)))
        opt.zero_grad()
        loss.backward()
        opt.step()
        plateau.step(loss.item())
    return {"loss": loss.item()}


@program(steps=150, adversarial="full-batch descent at the edge of stability: loss and gradients swing")
def swinging_descent(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Full-batch gradient descent with a rate that lets the loss swing while it falls."""
    torch.manual_seed(seed)
    x, y = rings(256)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = F.mse_loss(model(x), F.one_hot(y, 3).float())
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


class Factorisation(nn.Module):
    def __init__(self, users: int, films: int, rank: int) -> None:
        super().__init__()
        self.users, self.films = nn.Embedding(users, rank), nn.Embedding(films, rank)
        self.user_bias, self.film_bias = nn.Embedding(users, 1), nn.Embedding(films, 1)
        for table in (self.users, self.films):
            nn.init.normal_(table.weight, std=0.2)

    def forward(self, user: Tensor, film: Tensor) -> Tensor:
        both = (self.users(user) * self.films(film)).sum(-1)
        return 3 + both + self.user_bias(user).squeeze(-1) + self.film_bias(film).squeeze(-1)


@program(steps=200, adversarial="embedding rows rest for many steps")
def film_ratings(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Matrix factorisation of ratings with biases, Adam."""
    torch.manual_seed(seed)
    truth = torch.Generator().manual_seed(9)
    a, b = torch.randn(300, 3, generator=truth), torch.randn(400, 3, generator=truth)
    model = Factorisation(300, 400, 8)
    opt = torch.optim.Adam(model.parameters(), lr=2e-2)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        user, film = torch.randint(300, (256,)), torch.randint(400, (256,))
        rating = 3 + 0.5 * (a[user] * b[film]).sum(1) + 0.2 * torch.randn(256)
        loss = F.mse_loss(model(user, film), rating)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}
