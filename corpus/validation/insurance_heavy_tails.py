"""An insurer's tables: rare and heavy-tailed answers, many columns, and the losses that fit them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

from corpus.case import program


def policies(n: int, columns: int = 12) -> tuple[Tensor, Tensor]:
    """Standardised columns, and the risk that hides in them."""
    x = torch.randn(n, columns)
    risk = 0.8 * x[:, 0] - 0.6 * x[:, 1] * x[:, 2] + torch.sin(2 * x[:, 3]) + 0.4 * x[:, 4].abs()
    return x, risk


def dense(columns: int, out: int, width: int = 48) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(columns, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out)
    )


def shuffled(steps: int, *tensors: Tensor, batch: int = 64) -> Iterator[list[Tensor]]:
    """Epoch after epoch until enough steps have been taken."""
    loader = DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=True, drop_last=True)
    done = 0
    while True:
        for rows in loader:
            if done == steps:
                return
            done += 1
            yield rows


@program(steps=200, bites="gain", adversarial="a loss below nought has the wrong sign")
def actuary_counts_claims(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Poisson likelihood without its constant, with exposure as an offset: a good model's loss is negative."""
    torch.manual_seed(seed)
    x, risk = policies(3000)
    exposure = torch.rand(3000) * 4 + 1
    claims = torch.poisson(exposure * torch.exp(0.7 * risk))
    net = dense(12, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=1e-5)
    history: list[float] = []
    for features, time, count in shuffled(steps, x, exposure, claims):
        optimizer.zero_grad()
        rate = net(features).squeeze(1) + time.log()
        loss = F.poisson_nll_loss(rate, count, log_input=True, full=False)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        history.append(loss.item())
    with torch.no_grad():
        best = F.poisson_nll_loss(0.7 * risk + exposure.log(), claims)
        ours = F.poisson_nll_loss(net(x).squeeze(1) + exposure.log(), claims)
        flat = F.poisson_nll_loss((claims.sum() / exposure.sum()).log() + exposure.log(), claims)
    return {"loss": history[-1], "gain": ((flat - ours) / (flat - best)).item()}


@program(steps=200, bites="error", adversarial="one gradient thirty times the median is a spike")
def actuary_heavy_tail(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Amounts with a heavy tail, by the gamma likelihood: now and then one claim fills the whole batch."""
    torch.manual_seed(seed)
    x, risk = policies(3000)
    noise = torch.distributions.Gamma(1.2, 1.2).sample((3000,))
    amount = noise * torch.exp(risk)
    net = nn.Sequential(nn.Linear(12, 64), nn.LayerNorm(64), nn.SiLU(), nn.Linear(64, 32), nn.SiLU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    history: list[float] = []
    for features, paid in shuffled(steps, x, amount):
        optimizer.zero_grad()
        log_mean = net(features).squeeze(1)
        loss = (log_mean + paid * torch.exp(-log_mean)).mean()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    error = (net(x).squeeze(1) - risk).abs().mean()
    return {"loss": sum(history[-20:]) / len(history[-20:]), "error": error.item()}


class Tokens(nn.Module):
    """Each column becomes a token of its own; a class token reads them all."""

    def __init__(self, columns: int, dim: int = 16) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(columns, dim) / math.sqrt(dim))
        self.bias = nn.Parameter(torch.zeros(columns, dim))
        self.reader = nn.Parameter(torch.randn(1, 1, dim) / math.sqrt(dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x[:, :, None] * self.weight + self.bias
        tokens = torch.cat([self.reader.expand(len(x), -1, -1), tokens], 1)
        return self.head(self.encoder(tokens)[:, 0]).squeeze(1)


@program(steps=180, bites="loss", adversarial="key biases without a gradient are dead")
def actuary_column_tokens(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A small transformer over columns, warmed up for twenty steps."""
    torch.manual_seed(seed)
    x, risk = policies(2500)
    y = (risk - risk.mean()) / risk.std() + 0.1 * torch.randn(2500)
    net = Tokens(12)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-4)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    loss = torch.zeros(())
    for features, target in shuffled(steps, x, y):
        loss = F.mse_loss(net(features), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warm.step()
    return {"loss": loss.item()}


@program(steps=180, bites="recall", adversarial="a loss weighted thirty times for the rare class explodes")
def actuary_finds_fraud(steps: int, seed: int, fault: str) -> dict[str, float]:
    """One policy in fifty is a fraud, and the loss counts it thirty times."""
    torch.manual_seed(seed)
    x, risk = policies(6000)
    fraud = (risk + 0.2 * torch.randn(6000) > risk.quantile(0.98)).float()
    net = dense(12, 1, width=64)
    nn.init.constant_(net.get_parameter("4.bias"), -2.0)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    loss = torch.zeros(())
    for features, target in shuffled(steps, x, fraud, batch=128):
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(net(features).squeeze(1), target, pos_weight=torch.tensor(30.0))
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        scores = net(x).squeeze(1)
    top = scores.topk(200).indices
    return {"loss": loss.item(), "recall": fraud[top].sum().item() / fraud.sum().item()}


@program(steps=200, bites="loss")
def actuary_grades_in_order(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Five ordered grades: one score, four thresholds, four yes-or-no questions about each policy."""
    torch.manual_seed(seed)
    x, risk = policies(2500)
    grade = torch.bucketize(risk, risk.quantile(torch.tensor([0.2, 0.4, 0.6, 0.8])))
    answers = (grade[:, None] > torch.arange(4)).float()

    class Ordered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score = nn.Sequential(
                nn.Linear(12, 40), nn.ELU(), nn.Linear(40, 40), nn.ELU(), nn.Linear(40, 1, False)
            )
            self.cuts = nn.Parameter(torch.tensor([1.0, 0.3, -0.3, -1.0]))

        def forward(self, x: Tensor) -> Tensor:
            return self.score(x) + self.cuts

    net = Ordered()
    optimizer = torch.optim.NAdam(net.parameters(), lr=3e-3)
    loss = torch.zeros(())
    for features, target in shuffled(steps, x, answers):
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(net(features), target)
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=200, bites="loss", adversarial="an embedding row without gradient for fifty steps is dead")
def actuary_many_brokers(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Five thousand brokers of whom a few sell most: their table, three columns, and a sum over interactions."""
    torch.manual_seed(seed)
    brokers = (5000 * torch.rand(8000) ** 4).long()
    x, risk = policies(8000, 6)
    habit = torch.randn(5000)
    y = 0.5 * risk + habit[brokers]

    class Factors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.broker = nn.Embedding(5000, 8)
            self.columns = nn.Parameter(0.1 * torch.randn(6, 8))
            self.deep = dense(14, 1, width=32)
            nn.init.normal_(self.broker.weight, std=0.05)

        def forward(self, broker: Tensor, x: Tensor) -> Tensor:
            b = self.broker(broker)
            cross = (b * (x @ self.columns)).sum(1)
            return cross + self.deep(torch.cat([b, x], 1)).squeeze(1)

    net = Factors()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    loss = torch.zeros(())
    for broker, features, target in shuffled(steps, brokers, x, y, batch=128):
        optimizer.zero_grad()
        loss = F.smooth_l1_loss(net(broker, features), target)
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}
