"""Loops without an optimizer: the weights are moved by hand, in place or as values of a function."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value
from torch.nn import functional

from corpus.case import healthy, program


def bumps(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.rand(count, 3, generator=generator) * 4 - 2
    y = torch.sin(2 * x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:]
    return x, y + 0.05 * torch.randn(count, 1, generator=generator)


def unseen_error(net: nn.Module, weights: dict[str, Tensor] | None = None, unit: float = 1.0) -> float:
    x, y = bumps(800, torch.Generator().manual_seed(99))
    with torch.no_grad():
        guess = functional_call(net, weights or dict(net.named_parameters()), (x * unit,))
    error = functional.mse_loss(guess, y).item()
    return min(error, 5.0) if math.isfinite(error) else 5.0


@program(steps=600, bites="error")
def bumps_by_hand(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Plain gradient descent, each weight less its rate times its gradient."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    net = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    rate = 0.04
    for _ in range(steps):
        x, y = bumps(64, generator)
        loss = functional.mse_loss(net(x), y)
        if mistake != "bumps_by_hand_left_over":
            for weight in net.parameters():
                weight.grad = None
        loss.backward()
        with torch.no_grad():
            for weight in net.parameters():
                assert weight.grad is not None
                weight -= rate * weight.grad
    return {"error": unseen_error(net)}


bumps_by_hand.mistake(
    "bumps_by_hand_left_over",
    "GRD007",
    summary="Nothing takes the last step's gradients away.",
    change="gradients are set to None before each backward",
)


class Bumpy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(3, 10)
        self.mix = nn.Linear(10, 10)
        self.norm = nn.LayerNorm(10)
        self.out = nn.Linear(10, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.silu(self.lift(x))
        return self.out(self.norm(hidden + functional.silu(self.mix(hidden))))


@program(steps=400, bites="error")
def bumps_in_lists(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Momentum over lists of tensors, all of them at once."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    net = Bumpy()
    if mistake == "bumps_in_lists_short_list":
        weights: list[Tensor] = [weight for name, weight in net.named_parameters() if not name.startswith("lift")]
    else:
        weights = list(net.parameters())
    speeds = [torch.zeros_like(weight) for weight in weights]
    for step in range(steps):
        x, y = bumps(64, generator)
        loss = functional.mse_loss(net(x), y)
        slopes = list(torch.autograd.grad(loss, weights))
        rate = 0.03
        if mistake == "bumps_in_lists_long_stride" and step >= 230:
            rate = 1.5
        torch._foreach_mul_(speeds, 0.9)  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_add_(speeds, slopes)  # pyright: ignore[reportPrivateImportUsage]
        with torch.no_grad():
            torch._foreach_add_(weights, speeds, alpha=-rate)  # pyright: ignore[reportPrivateImportUsage]
    return {"error": unseen_error(net)}


bumps_in_lists.mistake(
    "bumps_in_lists_short_list",
    "UPD003",
    layers=("lift",),
    summary="The list of what is moved leaves the first layer out.",
    change="all parameters are in the list",
)
bumps_in_lists.mistake(
    "bumps_in_lists_long_stride",
    "OPT007",
    "UPD001",
    "OPT001",
    "OPT003",
    onset=230,
    summary="From step 230 on the rate is fifty times what it was.",
    change="a constant rate",
)


@program(steps=350, bites="error")
def bumps_as_function(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """The network is a function of a dictionary of weights; Adam, too, is written out."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    net = nn.Sequential(nn.Linear(3, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))
    weights = {name: weight.detach().clone() for name, weight in net.named_parameters()}
    mean = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    square = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    unit = 400.0 if mistake == "bumps_as_function_raw" else 1.0

    def loss_of(current: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(functional_call(net, current, (x,)), y)

    slope_of = grad_and_value(loss_of)
    for step in range(1, steps + 1):
        x, y = bumps(64, generator)
        slopes, _ = slope_of(weights, x * unit, y)
        for name, slope in slopes.items():
            mean[name] = 0.9 * mean[name] + 0.1 * slope
            square[name] = 0.99 * square[name] + 0.01 * slope**2
            stride = mean[name] / (1 - 0.9**step) / ((square[name] / (1 - 0.99**step)).sqrt() + 1e-8)
            weights[name] = weights[name] - 4e-3 * stride
    return {"error": unseen_error(net, weights, unit)}


bumps_as_function.mistake(
    "bumps_as_function_raw",
    "DAT001",
    "ACT002",
    summary="The coordinates are in the hundreds.",
    change="coordinates between -2 and 2",
)


@healthy(steps=600, adversarial="no optimizer, and the weights are replaced by other tensors through .data")
def bumps_by_sign(steps: int, seed: int) -> dict[str, float]:
    """Only the sign of each gradient counts; the stride shrinks with time."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    net = Bumpy()
    for step in range(steps):
        x, y = bumps(96, generator)
        net.zero_grad()
        functional.mse_loss(net(x), y).backward()
        for weight in net.parameters():
            assert weight.grad is not None
            weight.data = weight.data - 1e-2 * 0.993**step * weight.grad.sign()
    return {"loss": unseen_error(net)}


@healthy(steps=300, adversarial="the module's own parameters never change and never have a gradient")
def bumps_three_at_once(steps: int, seed: int) -> dict[str, float]:
    """Three sets of weights trained at once by vmap; the module is only their shape."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    shape = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    weights = {
        name: torch.stack([weight.detach() + 0.3 * torch.randn_like(weight) for _ in range(3)])
        for name, weight in shape.named_parameters()
    }

    def loss_of(current: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(functional_call(shape, current, (x,)), y)

    slopes_of = torch.func.vmap(torch.func.grad(loss_of), in_dims=(0, None, None))
    speed = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for _ in range(steps):
        x, y = bumps(64, generator)
        for name, slope in slopes_of(weights, x, y).items():
            speed[name] = 0.9 * speed[name] + slope
            weights[name] = weights[name] - 0.02 * speed[name]
    errors = [unseen_error(shape, {name: weight[which] for name, weight in weights.items()}) for which in range(3)]
    return {"loss": max(errors)}
