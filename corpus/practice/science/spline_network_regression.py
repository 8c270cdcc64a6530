"""Curves on the edges in place of weights: each connection of the network is a spline of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

KNOTS = 9


class SplineLayer(nn.Module):
    """Every output is a sum of one curve per input; a curve is a few hat functions on [-1.5, 1.5] and a slope."""

    grid: Tensor

    def __init__(self, n_in: int, n_out: int, base: bool = True) -> None:
        super().__init__()
        self.register_buffer("grid", torch.linspace(-1.5, 1.5, KNOTS))
        self.heights = nn.Parameter(torch.randn(n_out, n_in, KNOTS) * 0.3 / n_in**0.5)
        self.slope = nn.Parameter(torch.randn(n_out, n_in) / n_in**0.5) if base else None

    def forward(self, x: Tensor) -> Tensor:
        hats = torch.relu(1 - (x[..., None] - self.grid).abs() / (3.0 / (KNOTS - 1)))
        out = torch.einsum("bik,oik->bo", hats, self.heights)
        return out if self.slope is None else out + nn.functional.silu(x) @ self.slope.T


class SplineNet(nn.Module):
    def __init__(self, inputs: int, hidden: int = 10, base: bool = True) -> None:
        super().__init__()
        self.first = SplineLayer(inputs, hidden, base)
        self.second = SplineLayer(hidden, hidden, base)
        self.third = SplineLayer(hidden, 1, base)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.second(self.first(x)))


def formula(n: int) -> tuple[Tensor, Tensor]:
    x = torch.rand(n, 3) * 2 - 1
    return x, torch.sin(3 * x[:, :1]) + x[:, 1:2] ** 2 - x[:, 2:].abs()


@program(steps=120)
def formula_splines(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Three layers of curves without slopes, fitted to a formula."""
    torch.manual_seed(seed)
    net = SplineNet(3, base=False)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    if fault == "curves_all_flat":
        for parameter in net.parameters():
            nn.init.zeros_(parameter)
    losses = []
    for _ in range(steps):
        x, y = formula(128)
        if fault == "off_the_grid":
            x = 20 * x + 50  # degrees, for curves that are defined between -1.5 and 1.5
        loss = (net(x) - y).square().mean()
        if fault == "climbs_instead":
            loss = -loss
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(abs(loss.item()))
    return {"loss": min(1e6, sum(losses[-10:]) / len(losses[-10:]))}


formula_splines.mistake(
    "off_the_grid",
    "DAT001", "GRD004", "ACT001",
    summary="The inputs lie outside the grid on which the curves are defined: nothing passes the first layer.",
    change="bring the inputs to [-1, 1]",
    layers=("first",),
)  # fmt: skip
formula_splines.mistake(
    "curves_all_flat",
    "WGT002", "GRD004",
    summary="All curves start at zero, so each layer waits for the others for ever.",
    change="random heights",
    layers=("first", "second", "third"),
)  # fmt: skip
formula_splines.mistake(
    "climbs_instead",
    "LSS003", "OPT001", "WGT001",
    summary="The sign of the loss is wrong: the error is made as large as it can be.",
    change="minimise the error",
)  # fmt: skip


@program(steps=120, adversarial="a parameter with mostly zero gradients is dead")
def formula_splines_based(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Hats and slopes with a small batch: most heights get no gradient in any one step."""
    torch.manual_seed(seed)
    net = SplineNet(3)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=1e-3)
    losses = []
    for _ in range(steps):
        x, y = formula(24)
        loss = (net(x) - y).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return {"loss": sum(losses[-10:]) / len(losses[-10:])}


@program(steps=120)
def formula_functional(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """In the style of torch.func: gradients come from a function and are handed to the optimizer."""
    torch.manual_seed(seed)
    net = SplineNet(3)
    parameters: dict[str, Tensor] = dict(net.named_parameters())
    opt = torch.optim.Adam(parameters.values(), lr=1e-2)

    def error(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return (torch.func.functional_call(net, values, (x,)) - y).square().mean()

    losses = []
    for _ in range(steps):
        x, y = formula(128)
        gradients, loss = torch.func.grad_and_value(error)(parameters, x, y)
        for name, parameter in parameters.items():
            parameter.grad = gradients[name].detach()
        opt.step()
        losses.append(loss.item())
    return {"loss": sum(losses[-10:]) / len(losses[-10:])}
