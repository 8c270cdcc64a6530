"""Trainings that look wrong at first sight and are not."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional

from corpus.case import healthy
from undertow.demos.data import curves, glyphs, share_correct


@healthy(steps=700, adversarial="no backward at all; gradients are written by hand and are mostly noise")
def evolution_strategies(steps: int, seed: int) -> dict[str, float]:
    """Mirrored random directions, ranked by their loss, make the gradient that Adam is given."""
    torch.manual_seed(seed)
    inputs, targets = curves(seed, count=256)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    centre = nn.utils.parameters_to_vector(model.parameters())

    def loss_at(point: Tensor) -> float:
        nn.utils.vector_to_parameters(point, model.parameters())
        return functional.mse_loss(model(inputs).squeeze(1), targets).item()

    for _ in range(steps):
        directions = torch.randn(16, len(centre))
        gains = [loss_at(centre + 0.05 * one) - loss_at(centre - 0.05 * one) for one in directions]
        slope = (torch.tensor(gains)[:, None] * directions).mean(0) / 0.1
        nn.utils.vector_to_parameters(centre, model.parameters())
        at = 0
        for weight in model.parameters():
            weight.grad = slope[at : at + weight.numel()].view_as(weight).clone()
            at += weight.numel()
        optimizer.step()
        centre = nn.utils.parameters_to_vector(model.parameters()).clone()
    return {"loss": loss_at(centre)}


class Reversed(torch.autograd.Function):
    """The identity, whose gradient has the other sign."""

    @staticmethod
    def forward(ctx: FunctionCtx, features: Tensor) -> Tensor:  # pyright: ignore
        return features.view_as(features)

    @staticmethod
    def backward(ctx: FunctionCtx, slope: Tensor) -> Tensor:  # pyright: ignore
        return -0.3 * slope


@healthy(steps=2000, adversarial="two losses of which one is made worse on purpose, through a reversed gradient")
def domains_made_alike(steps: int, seed: int) -> dict[str, float]:
    """Domain-adversarial training: a head tells the domains apart, the features are trained to defeat it."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, count=1024, noise=0.5)
    others, truth = glyphs(seed + 1000, count=1024, noise=0.5)
    others = others + 0.7 * torch.linspace(-1, 1, 64)
    features = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
    label_head, domain_head = nn.Linear(32, 10), nn.Linear(32, 1)
    parameters = [*features.parameters(), *label_head.parameters(), *domain_head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    domains = torch.cat([torch.zeros(64, 1), torch.ones(64, 1)])
    for _ in range(steps):
        here, there = torch.randint(1024, (64,)), torch.randint(1024, (64,))
        hidden = features(torch.cat([pictures[here], others[there]]))
        told = functional.binary_cross_entropy_with_logits(domain_head(Reversed.apply(hidden)), domains)
        loss = functional.cross_entropy(label_head(hidden[:64]), labels[here]) + told
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    share = share_correct(nn.Sequential(features, label_head), others, truth)
    return {"loss": 1 - share, "accuracy": share}


@healthy(steps=5000, adversarial="weights that wander for ever under injected noise, and a loss that never settles")
def samples_of_the_posterior(steps: int, seed: int) -> dict[str, float]:
    """Stochastic gradient Langevin dynamics: the wandering is the point; predictions are averaged over it."""
    torch.manual_seed(seed)
    inputs, targets = curves(seed, count=512)
    fresh, truth = curves(seed + 1000)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    rate, total, drawn = 1e-4, torch.zeros(len(fresh)), 0
    for step in range(steps):
        rows = torch.randint(512, (64,))
        data_term = 512 * functional.mse_loss(model(inputs[rows]).squeeze(1), targets[rows]) / (2 * 0.1)
        prior = sum(weight.square().sum() for weight in model.parameters()) / 2
        model.zero_grad()
        (data_term + prior).backward()
        with torch.no_grad():
            for weight in model.parameters():
                assert weight.grad is not None
                weight.add_(-rate / 2 * weight.grad + rate**0.5 * torch.randn_like(weight))
            if step >= steps // 2 and step % 20 == 0:
                total += model(fresh).squeeze(1)
                drawn += 1
    return {"loss": functional.mse_loss(total / max(1, drawn), truth).item()}


@healthy(steps=2400, adversarial="parameters that come into the optimizer late, and a loss that leaps when they do")
def grown_layer_by_layer(steps: int, seed: int) -> dict[str, float]:
    """A net that grows: new blocks begin as zero, and are added to the optimizer as new groups."""
    torch.manual_seed(seed)
    inputs, targets = curves(seed)
    stem, head = nn.Linear(8, 32), nn.Linear(32, 1)
    blocks = nn.ModuleList()
    optimizer = torch.optim.Adam([*stem.parameters(), *head.parameters()], lr=2e-3)
    loss = torch.tensor(0.0)
    for step in range(steps):
        if step and step % max(1, steps // 4) == 0:
            block = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32))
            nn.init.zeros_(block[2].weight)
            nn.init.zeros_(block[2].bias)
            blocks.append(block)
            optimizer.add_param_group({"params": list(block.parameters()), "lr": 1e-3})
        rows = torch.randint(len(inputs), (64,))
        hidden = torch.tanh(stem(inputs[rows]))
        for block in blocks:
            hidden = hidden + block(hidden)
        loss = functional.mse_loss(head(hidden).squeeze(1), targets[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@healthy(steps=2500, adversarial="three loss terms a hundredfold apart in weight, double backward, no labels")
def heat_equation(steps: int, seed: int) -> dict[str, float]:
    """A physics-informed net: the equation, the ends and the beginning of a cooling rod."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        inside = torch.rand(64, 2).requires_grad_()
        heat = net(inside)
        slope = torch.autograd.grad(heat.sum(), inside, create_graph=True)[0]
        bend = torch.autograd.grad(slope[:, 0].sum(), inside, create_graph=True)[0][:, 0]
        equation = (slope[:, 1] - 0.1 * bend).square().mean()
        moment, place = torch.rand(32, 1), torch.rand(32, 1)
        ends = net(torch.cat([torch.randint(2, (32, 1)).float(), moment], 1)).square().mean()
        beginning = (net(torch.cat([place, torch.zeros(32, 1)], 1)) - torch.sin(torch.pi * place)).square().mean()
        loss = equation + 10 * ends + 100 * beginning
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}
