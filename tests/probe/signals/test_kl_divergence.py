"""What a code tells of its sample, where the loss holds its divergence from a prior."""

from __future__ import annotations

import pytest
import torch
from tests.probe.signals.loss_steps import CLASSES, ROWS, TARGETS
from tests.probe.training import batches, mlp
from torch import nn
from torch.nn import functional as F  # noqa: N812

from undertow.probe.signals.kl_divergence import read_latent


class Coder(nn.Module):
    def __init__(self, divergence):
        super().__init__()
        self.mean, self.scale, self.decoder = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(3, CLASSES)
        self.divergence = divergence

    def forward(self, x):
        mean, scale = self.mean(x), self.scale(x)
        self.share, variance = self.divergence(mean, scale)
        with torch.no_grad():
            self.nats = 0.5 * float((mean**2 + variance - variance.log() - 1).sum(1).mean())
        return self.decoder(mean + variance.sqrt() * torch.randn_like(mean))


DIVERGENCES = {
    "log-variance": lambda m, s: (-0.5 * (1 + s - m.pow(2) - s.exp()).sum(1).mean(), s.exp()),
    "log-deviation": lambda m, s: (0.5 * (m * m + (2 * s).exp() - 2 * s - 1).mean(), (2 * s).exp()),
    "deviation": lambda m, s: (
        torch.distributions.kl_divergence(
            torch.distributions.Normal(m, F.softplus(s)), torch.distributions.Normal(0.0, 1.0)
        ).mean(),
        F.softplus(s) ** 2,
    ),
}


@pytest.mark.parametrize("name", DIVERGENCES)
def test_what_a_code_tells_of_its_sample_is_measured_in_nats(watch, name):
    model = Coder(DIVERGENCES[name])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, activations=True) as w:
        loss = F.mse_loss(model(batches(6, ROWS)(0)), TARGETS) + model.share
        loss.backward()
        optimizer.step()
    assert w.run.series("latent_nats", "mean")[0] == pytest.approx(model.nats, rel=1e-4)


def test_the_divergence_of_weights_is_no_code():
    model = mlp(6, 10, CLASSES)
    mean, scale = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(4, 3))
    loss = F.mse_loss(model(batches(6, ROWS)(0)), TARGETS) + DIVERGENCES["log-variance"](mean, scale)[0]
    assert read_latent(loss) is None
