"""Healthy trainings on tables: odd units, odd losses, odd optimizers, and nothing wrong."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program


def standard(table: object) -> Tensor:
    values = np.asarray(table, dtype=np.float32)
    return torch.tensor((values - values.mean(0)) / values.std(0))


def patients() -> tuple[Tensor, Tensor]:
    x, y = load_diabetes(return_X_y=True)
    return standard(x), standard(y)


def biopsies() -> tuple[Tensor, Tensor]:
    x, y = load_breast_cancer(return_X_y=True)
    return standard(x), torch.tensor(y)


@program(steps=150, adversarial="a gradient of a thousand explodes")
def errors_added_over_the_batch(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The squared errors of 128 rows are added, and the learning rate is small to match."""
    torch.manual_seed(seed)
    x, y = patients()
    net = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=2e-4, momentum=0.9)
    for _ in range(steps):
        rows = torch.randint(len(x), (128,))
        loss = F.mse_loss(net(x[rows]).squeeze(1), y[rows], reduction="sum")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": F.mse_loss(net(x).squeeze(1), y).item()}


@program(steps=150, adversarial="a mean gradient below 1e-7 vanishes")
def an_error_in_coulombs(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The loss is a physical quantity of the order of 1e-7; Adam with an eps that knows it."""
    torch.manual_seed(seed)
    x, y = patients()
    net = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, eps=1e-18)
    for _ in range(steps):
        rows = torch.randint(len(x), (64,))
        loss = 1e-7 * F.mse_loss(net(x[rows]).squeeze(1), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": F.mse_loss(net(x).squeeze(1), y).item()}


class MeanAndSpread(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(3, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU())
        self.mean = nn.Linear(32, 1)
        self.spread = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.shared(x)
        return self.mean(h).squeeze(1), F.softplus(self.spread(h)).squeeze(1) + 1e-3


@program(steps=200, adversarial="a loss below zero has the wrong sign")
def likelihood_of_a_sharp_law(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Mean and spread of a nearly exact law by Gaussian likelihood: the loss goes below zero, as it should."""
    torch.manual_seed(seed)
    x = torch.rand(1000, 3) * 2 - 1
    y = torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.05 * torch.randn(1000)
    net = MeanAndSpread()
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    for _ in range(steps):
        rows = torch.randint(1000, (64,))
        mean, spread = net(x[rows])
        loss = (0.5 * ((y[rows] - mean) / spread) ** 2 + spread.log()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    mean, spread = net(x)
    return {
        "loss": (0.5 * ((y - mean) / spread) ** 2 + spread.log()).mean().item(),
        "error": (mean - y).abs().mean().item(),
    }


@program(steps=160, adversarial="a gradient that is 97 % zeros is dead")
def towns_and_trades(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Entity embeddings with 1,500 towns: every town is seen in time, a batch sees one in thirty."""
    torch.manual_seed(seed)
    town_worth, trade_worth = torch.randn(1500), torch.randn(12)
    town, trade = torch.arange(1500).repeat(4), torch.randint(12, (6000,))
    wage = town_worth[town] + trade_worth[trade] + 0.1 * torch.randn(6000)
    towns, trades = nn.Embedding(1500, 8), nn.Embedding(12, 8)
    head = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    model = nn.ModuleDict({"towns": towns, "trades": trades, "head": head})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    order = torch.cat([torch.randperm(6000) for _ in range(2)])
    for step in range(steps):
        rows = order[step * 64 : step * 64 + 64]
        predicted = head(torch.cat([towns(town[rows]), trades(trade[rows])], 1)).squeeze(1)
        loss = F.smooth_l1_loss(predicted, wage[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    everywhere = head(torch.cat([towns(town), trades(trade)], 1)).squeeze(1)
    return {"loss": F.smooth_l1_loss(everywhere, wage).item()}


@program(steps=150, adversarial="values between zero and one must not enter a cross-entropy")
def chances_into_the_loss_for_chances(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A sigmoid and a binary cross-entropy that wants just that."""
    torch.manual_seed(seed)
    x, y = biopsies()
    net = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(400, (32,))
        loss = nn.BCELoss()(net(x[rows]).squeeze(1), y[rows].float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"accuracy": ((net(x[400:]).squeeze(1) > 0.5) == y[400:]).float().mean().item(), "loss": loss.item()}


@program(steps=200, adversarial="a loss that stopped and gradients of 1e-5 mean that nothing is learned")
def sixty_flowers_by_heart(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A network learns sixty flowers by heart; by the end there is nothing left to learn."""
    torch.manual_seed(seed)
    x, y = load_iris(return_X_y=True)
    flowers, kinds = standard(x)[::2][:60], torch.tensor(y)[::2][:60]
    net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = F.cross_entropy(net(flowers), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=25, adversarial="several backward passes before the next step of a schedule are a loop gone wrong")
def second_order_by_closure(steps: int, seed: int, fault: str) -> dict[str, float]:
    """L-BFGS with a closure on the whole table: many passes for each step."""
    torch.manual_seed(seed)
    x, y = biopsies()
    net = nn.Sequential(nn.Linear(30, 12), nn.Tanh(), nn.Linear(12, 2))
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        penalty = sum(p.pow(2).sum() for p in net.parameters())
        loss = F.cross_entropy(net(x), y) + 1e-3 * penalty
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    return {"loss": F.cross_entropy(net(x), y).item()}


@program(steps=180, adversarial="a learning rate that grows twentyfold is a mistake of the schedule")
def one_large_cycle(steps: int, seed: int, fault: str) -> dict[str, float]:
    """One cycle of the learning rate, from 0.01 up to 0.2 and down to nothing, with batch norm."""
    torch.manual_seed(seed)
    x, y = biopsies()
    net = nn.Sequential(nn.Linear(30, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-3)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=steps + 1, div_factor=20)
    for _ in range(steps):
        rows = torch.randint(400, (40,))
        optimizer.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
        cycle.step()
    net.eval()
    out = net(x[400:])
    return {"accuracy": (out.argmax(1) == y[400:]).float().mean().item(), "loss": F.cross_entropy(out, y[400:]).item()}


@program(steps=150)
def eight_selus_deep(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Eight self-normalising layers with alpha dropout and the initialisation that belongs to them."""
    torch.manual_seed(seed)
    x, y = biopsies()
    layers: list[nn.Module] = []
    for i in range(8):
        layers += [nn.Linear(30 if i == 0 else 32, 32), nn.SELU(), nn.AlphaDropout(0.05)]
    net = nn.Sequential(*layers, nn.Linear(32, 2))
    for module in net:
        if isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
            nn.init.zeros_(module.bias)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(steps):
        rows = torch.randint(400, (32,))
        optimizer.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
    net.eval()
    out = net(x[400:])
    return {"accuracy": (out.argmax(1) == y[400:]).float().mean().item(), "loss": F.cross_entropy(out, y[400:]).item()}


@program(steps=160)
def three_quantiles(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The tenth, the middle and the ninetieth percentile of a disease's progress, by pinball loss."""
    torch.manual_seed(seed)
    x, y = patients()
    level = torch.tensor([0.1, 0.5, 0.9])
    net = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 3))
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(len(x), (64,))
        over = y[rows, None] - net(x[rows])
        loss = torch.maximum(level * over, (level - 1) * over).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}
