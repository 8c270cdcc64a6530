"""Soil chemistry from spectra: penalties on weights written by hand, and a rate taken from another optimizer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program

BANDS, MINERALS = 80, 12


def spectra(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Absorption in eighty bands, and the shares of twelve minerals (wide output)."""
    fixed = torch.Generator().manual_seed(19)
    lines = torch.randn(MINERALS, BANDS, generator=fixed)
    g = torch.Generator().manual_seed(seed)
    shares = torch.distributions.Dirichlet(torch.full((MINERALS,), 0.6))
    torch.manual_seed(seed)
    amount = shares.sample((count,))
    return torch.tanh(1.5 * amount @ lines) + 0.05 * torch.randn(count, BANDS, generator=g), 4 * amount


class PenaltyMixin:
    """Adds penalties on the matrices of a model."""

    def squares(self) -> Tensor:
        return torch.stack([p.square().sum() for p in self.parameters() if p.ndim == 2]).sum()

    def absolutes(self) -> Tensor:
        return torch.stack([p.abs().sum() for p in self.parameters() if p.ndim == 2]).sum()


class SoilModel(PenaltyMixin, nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(BANDS, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU())
        self.minerals = nn.Linear(64, MINERALS)

    def forward(self, x: Tensor) -> Tensor:
        return self.minerals(self.hidden(x))


@program(steps=900, bites="error")
def soil_spectra(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Shares of minerals with penalties on weights, written into the loss; SGD with momentum."""
    x, y = spectra(seed, 3000)
    test, truth = spectra(seed + 30, 800)
    torch.manual_seed(seed)
    model = SoilModel()
    rate = 5.0 if mistake == "soil_rate_hundredfold" else 0.05
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)  # at fault: soil_rate_hundredfold
    sparse = 0.05 if mistake == "soil_absolute_penalty_wins" else 1e-6
    sign = -1 if mistake == "soil_penalty_subtracted" else 1
    for _ in range(steps):
        rows = torch.randint(len(x), (64,))
        error = F.mse_loss(model(x[rows]), y[rows])
        penalty = sparse * model.absolutes()  # at fault: soil_absolute_penalty_wins
        loss = error + penalty + sign * 2e-3 * model.squares()  # at fault: soil_penalty_subtracted
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        error = F.mse_loss(model(test), truth).item() / truth.var().item()
        size = model.squares().sqrt().item()
    return {"error": min(50.0, error) if error == error else 50.0, "size": min(size, 1e6) if size == size else 1e6}


soil_spectra.mistake(
    "soil_penalty_subtracted",
    "WGT001",
    "LSS003",
    summary="The penalty on squared weights is subtracted: large weights are rewarded.",
    change="plus",
)
soil_spectra.mistake(
    "soil_absolute_penalty_wins",
    "WGT005",
    "GRD009",
    summary="The penalty on absolute weights is so strong that every weight goes to zero.",
    change="1e-6",
)
soil_spectra.mistake(
    "soil_rate_hundredfold",
    "OPT007",
    "UPD001",
    summary="The rate is a hundred times what it was tuned to.",
    change="lr=0.05",
)
