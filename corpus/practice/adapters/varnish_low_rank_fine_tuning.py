"""How thick must the varnish be? A net trained on one workshop is fitted to another with low-rank corrections."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

FIRST = 80


def workshop(n: int, g: torch.Generator, shift: float) -> tuple[Tensor, Tensor]:
    """Eight properties of a board; the second workshop mixes its varnish differently."""
    x = torch.randn(n, 8, generator=g)
    y = torch.sin(x[:, 0] + shift * x[:, 5]) + 0.5 * x[:, 1] * x[:, 2] + shift * (0.8 * x[:, 3] - 0.5 * x[:, 4])
    return x, y[:, None]


class LowRank(nn.Module):
    """y = W x + alpha / r · B A x"""

    def __init__(self, base: nn.Linear, r: int, alpha: float) -> None:
        super().__init__()
        self.base = base
        self.A = nn.Parameter(torch.randn(r, base.in_features) / base.in_features**0.5)
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        self.scaling = alpha / r

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scaling * (x @ self.A.T @ self.B.T)


def inject(model: nn.Sequential, r: int, alpha: float) -> None:
    for index, layer in enumerate(model):
        if isinstance(layer, nn.Linear):
            model[index] = LowRank(layer, r, alpha)


def fit(model: nn.Module, lr: float, steps: int, shift: float, g: torch.Generator) -> float:
    opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr)
    value = 0.0
    for _ in range(steps):
        x, y = workshop(64, g, shift)
        loss = (model(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        value = loss.item()
    return value


@program(steps=200, bites="error")
def varnish(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Eighty steps for the first workshop, then the base rests and corrections of rank four learn the second."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    first = min(FIRST, steps // 2)
    fit(model, 4e-3, first, 0.0, g)
    if fault != "varnish_frozen_afterwards":
        model.requires_grad_(False)
    inject(model, r=4, alpha=800.0 if fault == "varnish_alpha_of_eight_hundred" else 8.0)
    if fault == "varnish_frozen_afterwards":
        model.requires_grad_(False)
        model[4].requires_grad_(True)  # the last layer should learn in any case
    value = fit(model, 4e-3, steps - first, 1.0, g)
    x, y = workshop(1000, g, 1.0)
    with torch.no_grad():
        error = (model(x) - y).pow(2).mean().item() / y.var().item()
    return {"loss": min(value, 1e9), "error": min(error, 5.0) if error == error else 5.0}


varnish.mistake(
    "varnish_alpha_of_eight_hundred",
    "UPD001", "OPT003", "OPT001", "OPT007", "GRD002", "GRD006",
    summary="The corrections are multiplied by two hundred instead of two: their first steps wreck what was learnt.",
    change="alpha of about twice the rank",
    layers=("0", "2", "4"),
    onset=FIRST,
)  # fmt: skip
varnish.mistake(
    "varnish_frozen_afterwards",
    "UPD003", "UPD004",
    summary="The base is frozen after the corrections were put in, and they with it; only the last layer still learns.",
    change="freeze first, then put the corrections in",
    layers=("0", "2"),
    onset=FIRST,
)  # fmt: skip


@program(steps=180, bites="error", adversarial="layers below a trained one that stay unchanged were forgotten")
def varnish_last_layers(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The first layer is kept on purpose when the second workshop is learnt: only what follows is fitted."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 1))
    fit(model, 4e-3, steps // 2, 0.3, g)
    model[0].requires_grad_(False)
    value = fit(model, 3e-3, steps - steps // 2, 0.5, g)
    return {"loss": value, "error": value}
