"""Predict house prices from a table: perceptrons in one line, a target in euros, and hand-written errors."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from corpus.case import program

FEATURES = 10


def houses(seed: int, count: int = 1500) -> tuple[Tensor, Tensor]:
    """Standardised features, and prices in euros with a long tail."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, FEATURES, generator=g)
    log_price = 12.3 + 0.35 * x[:, 0] + 0.2 * x[:, 1] * x[:, 2] + 0.25 * torch.tanh(2 * x[:, 3])
    return x, torch.exp(log_price + 0.05 * torch.randn(count, generator=g))


def perceptron(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, o in pairwise(widths[:-1]):
        layers += [nn.Linear(i, o), activation()]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))


def unexplained(prediction: Tensor, target: Tensor) -> float:
    """The share of the variance that is left: 0 is perfect, 1 is as good as the mean."""
    return min(5.0, ((prediction.squeeze(-1) - target) ** 2).mean().item() / target.var().item())


@program(steps=1500, bites="unexplained")
def house_prices_standardised(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Regression of standardised prices with a hand-written squared error."""
    torch.manual_seed(seed)
    x, price = houses(seed)
    test, test_price = houses(seed + 1)
    if mistake == "prices_in_euros":
        middle, spread = torch.tensor(0.0), torch.tensor(1.0)  # at fault: prices_in_euros
    else:
        middle, spread = price.mean(), price.std()
    model = perceptron(FEATURES, 96, 96, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    y = (price - middle) / spread
    for _ in range(steps):
        rows = torch.randint(len(x), (96,))
        prediction = model(x[rows])
        if mistake != "prices_column_minus_row":
            prediction = prediction.squeeze(-1)
        loss = (prediction - y[rows]).square().mean()  # at fault: prices_column_minus_row
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return {"unexplained": unexplained(model(test) * spread + middle, test_price), "loss": loss.item()}


house_prices_standardised.mistake(
    "prices_in_euros",
    "DAT003",
    summary="The target is a price in euros, a quarter of a million on average.",
    change="standardised prices",
)
house_prices_standardised.mistake(
    "prices_column_minus_row",
    "LSS002",
    summary="A column of predictions minus a row of prices is a matrix: the model learns the mean.",
    change="squeeze(-1)",
)


@program(steps=1500, bites="unexplained")
def house_prices_deep(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Nine layers on logarithms of prices; SGD with momentum, the activation from a name."""
    torch.manual_seed(seed)
    x, price = houses(seed)
    test, test_price = houses(seed + 1)
    y, test_y = ((torch.log(p) - 12.3) / 0.45 for p in (price, test_price))
    kind = getattr(nn, "Sigmoid" if mistake == "prices_through_nine_sigmoids" else "LeakyReLU")
    model = perceptron(FEATURES, *[48] * 8, 1, activation=kind)  # at fault: prices_through_nine_sigmoids
    gain = nn.init.calculate_gain("leaky_relu", 0.01)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight, gain)
    momentum = 0.9995 if mistake == "prices_endless_momentum" else 0.9
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=momentum)  # at fault: prices_endless_momentum
    for _ in range(steps):
        rows = torch.randint(len(x), (96,))
        loss = nn.functional.huber_loss(model(x[rows]).squeeze(-1), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return {"unexplained": unexplained(model(test), test_y), "loss": loss.item()}


house_prices_deep.mistake(
    "prices_through_nine_sigmoids",
    "GRD001",
    summary="Eight hidden layers of sigmoids: the first ones get next to no gradient.",
    change="leaky ReLU",
    layers=("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"),
)
house_prices_deep.mistake(
    "prices_endless_momentum",
    "OPT008",
    summary="A momentum of 0.9995 carries every gradient through the whole training.",
    change="momentum=0.9",
)
