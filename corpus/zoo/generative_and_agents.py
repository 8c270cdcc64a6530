"""Models of data: several losses, several optimizers, gradients of gradients, losses below zero."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy
from undertow.demos.data import glyphs


class VariationalAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 16))
        self.decoder = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 64))

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(pictures).chunk(2, -1)
        code = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
        return self.decoder(code), mean, log_variance


@healthy(steps=150, architecture="autoencoder")
def vae(steps: int, seed: int) -> dict[str, float]:
    """A variational autoencoder with a light prior."""
    torch.manual_seed(seed)
    inputs, _ = glyphs(seed)
    model = VariationalAutoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        pictures = inputs[torch.randint(len(inputs), (64,))]
        output, mean, log_variance = model(pictures)
        divergence = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum(-1).mean()
        loss = functional.mse_loss(output, pictures, reduction="none").sum(-1).mean() + 0.1 * divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@healthy(
    steps=120,
    architecture="adversarial",
    adversarial="gradients found at backward were not cleared; losses that swing are a fault",
)
def gan(steps: int, seed: int) -> dict[str, float]:
    """Generator and discriminator in turn; the discriminator has two backward passes to a step."""
    torch.manual_seed(seed)
    inputs, _ = glyphs(seed)
    generator = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 64))
    discriminator = nn.Sequential(nn.Linear(64, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.99))
    discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.99))
    ones, zeros = torch.full((32, 1), 0.9), torch.zeros(32, 1)
    judge = functional.binary_cross_entropy_with_logits
    loss = torch.tensor(0.0)
    for _ in range(steps // 2):
        pictures = inputs[torch.randint(len(inputs), (32,))]
        made = generator(torch.randn(32, 8))
        discriminator_optimizer.zero_grad()
        judge(discriminator(pictures), ones).backward()
        judge(discriminator(made.detach()), zeros).backward()
        discriminator_optimizer.step()
        generator_optimizer.zero_grad()
        loss = judge(discriminator(made), ones)
        loss.backward()  # leaves gradients in the discriminator too; they are cleared before its next turn
        generator_optimizer.step()
    return {"loss": loss.item()}


@healthy(steps=150, architecture="physics-informed", adversarial="more than one backward to a step is an accumulation")
def physics(steps: int, seed: int) -> dict[str, float]:
    """A network that solves u″ = −u: the loss holds second derivatives of the network (double backward)."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    start = torch.zeros(1, 1, requires_grad=True)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        place = (3 * torch.rand(64, 1)).requires_grad_()
        value = model(place)
        (slope,) = torch.autograd.grad(value.sum(), place, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), place, create_graph=True)
        (first_slope,) = torch.autograd.grad(model(start).sum(), start, create_graph=True)
        loss = (curvature + value).square().mean() + model(start).square().sum() + (first_slope - 1).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@healthy(steps=120, architecture="perceptron", adversarial="a negative loss has the wrong sign")
def policy_gradient(steps: int, seed: int) -> dict[str, float]:
    """REINFORCE on a bandit with contexts: the loss is often negative, and that is fine."""
    torch.manual_seed(seed)
    inputs, labels = glyphs(seed)
    policy = nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 10))
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    baseline, loss = 0.1, torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (128,))
        choices = torch.distributions.Categorical(logits=policy(inputs[batch]))
        actions = choices.sample()
        reward = (actions == labels[batch]).float()
        loss = -(choices.log_prob(actions) * (reward - baseline)).mean() - 0.01 * choices.entropy().mean()
        baseline = 0.9 * baseline + 0.1 * reward.mean().item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": baseline}


@healthy(steps=120, architecture="perceptron", adversarial="any infinite gradient is a fault")
def loss_scaler(steps: int, seed: int) -> dict[str, float]:
    """fp16 autocast with a GradScaler that starts too high and keeps probing: it skips a step now and then."""
    torch.manual_seed(seed)
    inputs, labels = glyphs(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=15)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        with torch.autocast("cpu", dtype=torch.float16):
            loss = functional.cross_entropy(model(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
    return {"loss": loss.item(), "scale": scaler.get_scale()}
