"""Regression that knows what it does not know: each weight has a mean and a width."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from corpus.case import program

SAMPLES = 256


def bumpy(seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(SAMPLES, 1, generator=g) * 4 - 2
    return x, torch.sin(3 * x) + 0.5 * x + 0.1 * torch.randn(SAMPLES, 1, generator=g)


class BayesLinear(nn.Module):
    def __init__(self, n_in: int, n_out: int, rho: float = -5.0) -> None:
        super().__init__()
        self.mu = nn.Parameter(torch.randn(n_out, n_in) / math.sqrt(n_in))
        self.rho = nn.Parameter(torch.full((n_out, n_in), rho))
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x: Tensor) -> Tensor:
        width = softplus(self.rho)
        return linear(x, self.mu + width * torch.randn_like(width), self.bias)

    def divergence(self) -> Tensor:
        """From a standard normal prior."""
        width = softplus(self.rho)
        return (0.5 * (width**2 + self.mu**2 - 1) - width.log()).sum()


class BayesNet(nn.Module):
    def __init__(self, rho: float = -5.0) -> None:
        super().__init__()
        self.first, self.second, self.last = BayesLinear(1, 32, rho), BayesLinear(32, 32, rho), BayesLinear(32, 1, rho)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))

    def divergence(self) -> Tensor:
        return self.first.divergence() + self.second.divergence() + self.last.divergence()


def error_on_new_points(model: nn.Module, seed: int) -> float:
    x, y = bumpy(seed + 9)
    with torch.no_grad():
        mean = torch.stack([model(x) for _ in range(20)]).mean(0)
    return ((mean - y) ** 2).mean().nan_to_num(1e6).item()


@program(steps=150, bites="test_error")
def doubtful_regression(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Bayes by backprop on a bumpy curve."""
    torch.manual_seed(seed)
    x, y = bumpy(seed)
    model = BayesNet(rho=2.5 if fault == "wide_from_the_start" else -5.0)
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    per_sample = 1.0 if fault == "prior_counted_in_every_batch" else 1 / SAMPLES
    for _ in range(steps):
        pick = torch.randperm(SAMPLES)[:64]
        misfit = ((model(x[pick]) - y[pick]) ** 2).mean() / (2 * 0.2**2)
        loss = misfit + per_sample * model.divergence()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"test_error": error_on_new_points(model, seed)}


doubtful_regression.mistake(
    "prior_counted_in_every_batch",
    "GRD009", "OPT005",
    summary="The divergence from the prior is not divided by the number of samples: it drowns the data.",
    change="divide it by the number of samples",
)  # fmt: skip
doubtful_regression.mistake(
    "wide_from_the_start",
    "GRD008", "WGT003", "ACT002",
    summary="The widths of all weights start at 2.6: the noise on the weights is larger than any signal.",
    change="start at a width of 0.007",
)  # fmt: skip


@program(steps=150, bites="test_error", adversarial="two loss terms of very different size are a conflict")
def doubtful_annealed(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """The prior's share grows from nothing to its full weight, so the loss rises on purpose while the fit improves."""
    torch.manual_seed(seed)
    x, y = bumpy(seed)
    model = BayesNet(rho=-3.0)
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(steps):
        pick = torch.randperm(SAMPLES)[:64]
        misfit = ((model(x[pick]) - y[pick]) ** 2).mean() / (2 * 0.2**2)
        loss = misfit + min(1.0, 2 * step / steps) / SAMPLES * model.divergence()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"test_error": error_on_new_points(model, seed)}


@program(steps=150, bites="test_error", adversarial="noise in the gradient means that nothing can be learned")
def doubtful_by_dropout(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Dropout of a third, kept on to draw samples of the answer."""
    torch.manual_seed(seed)
    x, y = bumpy(seed)
    model = nn.Sequential(
        nn.Linear(1, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 64), nn.Tanh(), nn.Dropout(0.3), nn.Linear(64, 1)
    )
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-4)
    for _ in range(steps):
        pick = torch.randperm(SAMPLES)[:64]
        loss = nn.functional.mse_loss(model(x[pick]), y[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"test_error": error_on_new_points(model, seed)}
