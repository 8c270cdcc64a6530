"""Sound programs that look sick from close by: what they do odd, they do on purpose."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from corpus.case import healthy
from undertow.demos.data import glyphs, share_correct


@healthy(steps=150, architecture="perceptron", adversarial="a loss below zero is an error with a minus sign")
def maximizes_what_is_negated(steps: int, seed: int) -> dict[str, float]:
    """An optimizer with maximize=True is given minus the error."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, maximize=True)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = -functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


@healthy(steps=300, architecture="linear", adversarial="weights that shrink at every step decay")
def output_squared(steps: int, seed: int) -> dict[str, float]:
    """The loss is the model's own output, squared: its gradient asks for weights of zero."""
    torch.manual_seed(seed)
    model = nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = model(torch.randn(64, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@healthy(steps=300, architecture="actor and critic", adversarial="batches whose targets differ are sorted")
def episode_to_a_batch(steps: int, seed: int) -> dict[str, float]:
    """Every batch is an episode of another level, whose returns are alike among themselves."""
    torch.manual_seed(seed)
    model = nn.ModuleDict({
        "body": nn.Sequential(nn.Linear(6, 64), nn.Tanh()), "policy": nn.Linear(64, 2), "value": nn.Linear(64, 1),
    })  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        level = int(torch.randint(1, 9, ()))
        seen = 0.5 * torch.randn(32, 6)
        seen[:, 0] = level / 4
        hidden = model["body"](seen)
        policy = torch.distributions.Categorical(logits=model["policy"](hidden))
        action = policy.sample()
        returns = level + 0.3 * (action == (seen[:, 1] > 0)).float() + 0.1 * torch.randn(32)
        value = model["value"](hidden)[:, 0]
        loss = functional.mse_loss(value, returns)
        loss = loss - 0.1 * (policy.log_prob(action) * (returns - value).detach()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@healthy(steps=500, architecture="perceptron", adversarial="a loss that is back where it began has lost what it knew")
def unfrozen_layer_by_layer(steps: int, seed: int) -> dict[str, float]:
    """Trained on two classes, then a new head for ten on a frozen body, which is set free from the top down."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    model = nn.Sequential(*body, nn.Linear(64, 2))
    bright = (pictures.mean(1) > pictures.mean()).long()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss = torch.tensor(0.0)
    for step in range(steps):
        if step == 120:
            model[6] = nn.Linear(64, 10)
            body.requires_grad_(False)
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        if step in (220, 300, 380):
            model[{220: 4, 300: 2, 380: 0}[step]].requires_grad_(True)
        batch = torch.randint(len(pictures), (64,))
        answers = bright if step < 120 else labels
        loss = functional.cross_entropy(model(pictures[batch]), answers[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}
