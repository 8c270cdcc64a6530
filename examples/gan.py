"""Two models and two optimizers that step in turn: each step of either is a step of the run.

Paths begin with the names given to `undertow.watch`. Run it with plain `python`, or with `undertow run`, under
which that line joins the watch that is already there.
"""

import torch
from torch import nn

import undertow

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
discriminator = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=5e-4, betas=(0.5, 0.999))
discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=5e-4, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()

watch = undertow.watch({"generator": generator, "discriminator": discriminator}, name="gan")

for _ in range(100):
    angles = 2 * torch.pi * torch.rand(64)
    real = torch.stack([angles.cos(), angles.sin()], 1)
    fake = generator(torch.randn(64, 8))

    discriminator_optimizer.zero_grad()
    loss = criterion(discriminator(real), torch.ones(64, 1))
    loss = loss + criterion(discriminator(fake.detach()), torch.zeros(64, 1))
    loss.backward()
    discriminator_optimizer.step()

    generator_optimizer.zero_grad()
    criterion(discriminator(fake), torch.ones(64, 1)).backward()
    generator_optimizer.step()
    watch.log(distance_from_circle=(fake.detach().norm(dim=1) - 1).abs().mean())
