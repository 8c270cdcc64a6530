"""What is the distribution? A mixture density network, and a flow of coupling layers."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from corpus.case import program

Outputs = tuple[Tensor, Tensor, Tensor]


class MixtureDensityNetwork(nn.Module):
    def __init__(self, components: int = 5) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(1, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.pi, self.mu, self.log_sigma = (nn.Linear(48, components) for _ in range(3))
        nn.init.uniform_(self.mu.bias, -1.0, 1.0)

    def forward(self, x: Tensor) -> Outputs:
        h = self.hidden(x)
        return self.pi(h), self.mu(h), self.log_sigma(h)


def naive_nll(outputs: Outputs, y: Tensor) -> Tensor:
    logits, mu, log_sigma = outputs
    sigma = log_sigma.exp()
    density = torch.exp(-0.5 * ((y - mu) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
    return -torch.log((logits.softmax(1) * density).sum(1)).mean()


def stable_nll(outputs: Outputs, y: Tensor) -> Tensor:
    logits, mu, log_sigma = outputs
    log_density = -0.5 * ((y - mu) / log_sigma.exp()) ** 2 - log_sigma - 0.5 * math.log(2 * math.pi)
    return -torch.logsumexp(logits.log_softmax(1) + log_density, 1).mean()


@program(steps=200, bites="nll", adversarial="a negative log-likelihood may be negative")
def inverse_sine(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A mixture density network on an inverse problem with several right answers; one outlier at step 80."""
    torch.manual_seed(seed)
    model = MixtureDensityNetwork()
    optimizer = torch.optim.NAdam(model.parameters(), lr=5e-3)
    nll_of = naive_nll if fault == "likelihood_underflows" else stable_nll
    for step in range(steps):
        y = 2 * torch.rand(512, 1) - 1
        x = y + 0.3 * torch.sin(2 * math.pi * y) + 0.03 * torch.randn_like(y)
        if step == 80:
            y[0] = 2.5  # a sensor glitch that a sound likelihood survives
        nll = nll_of(model(x), y)
        optimizer.zero_grad()
        nll.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    y = torch.linspace(-1, 1, 200)[:, None]
    with torch.no_grad():
        outputs = model(y + 0.3 * torch.sin(2 * math.pi * y))
        nll = stable_nll(outputs, y).item()
    return {"nll": nll if math.isfinite(nll) else 20.0}


class Coupling(nn.Module):
    def __init__(self, flip: bool, bounded: bool) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
        self.flip, self.bounded = flip, bounded

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.flip(1).chunk(2, 1) if self.flip else x.chunk(2, 1)
        s, t = self.net(a).chunk(2, 1)
        if self.bounded:
            s = torch.tanh(s)
        z = torch.cat([a, b * s.exp() + t], 1)
        return (z.flip(1) if self.flip else z), s.squeeze(1)


class RealNVP(nn.Module):
    def __init__(self, layers: int, bounded: bool = True) -> None:
        super().__init__()
        self.couplings = nn.ModuleList(Coupling(flip=bool(i % 2), bounded=bounded) for i in range(layers))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        log_det = x.new_zeros(len(x))
        for coupling in self.couplings:
            x, ld = coupling(x)
            log_det = log_det + ld
        return x, log_det


@program(steps=200, bites="nll")
def ring_flow(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A normalising flow of six coupling layers learns points on a ring."""
    torch.manual_seed(seed)
    flow = RealNVP(6)
    optimizer = torch.optim.Adamax(flow.parameters(), lr=5e-3)
    sign = -1.0 if fault == "log_determinant_with_wrong_sign" else 1.0
    for _ in range(steps):
        x = _ring(128)
        z, log_det = flow(x)
        loss = (0.5 * z.square().sum(1) + math.log(2 * math.pi) - sign * log_det).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        z, log_det = flow(_ring(512))
        nll = (0.5 * z.square().sum(1) + math.log(2 * math.pi) - log_det).mean().item()
    return {"nll": min(nll, 1e3)}


def _ring(n: int) -> Tensor:
    angle = 2 * math.pi * torch.rand(n)
    radius = 2 + 0.1 * torch.randn(n)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1)


inverse_sine.mistake(
    "likelihood_underflows",
    "NUM002", "NUM001", "NUM004",
    summary="The likelihood is a plain sum of exponentials: an outlier at step 80 makes it zero, its log infinite.",
    change="logsumexp",
    onset=80,
)  # fmt: skip
ring_flow.mistake(
    "log_determinant_with_wrong_sign",
    "LSS003", "OPT001",
    summary="The log-determinant is added instead of subtracted: the flow shrinks space and the loss has no floor.",
    change="subtract it",
)  # fmt: skip
