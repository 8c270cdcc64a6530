"""Healthy: numbers in tables, from logistic regression to tasks that follow each other."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from corpus.case import program


def mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    parts: list[nn.Module] = []
    for a, b in pairwise(widths[:-1]):
        parts += [nn.Linear(a, b), act()]
    return nn.Sequential(*parts, nn.Linear(widths[-2], widths[-1]))


def clusters(n: int, kinds: int = 5, dim: int = 16) -> tuple[Tensor, Tensor]:
    centres = 1.5 * torch.randn(kinds, dim, generator=torch.Generator().manual_seed(kinds))
    y = torch.randint(kinds, (n,))
    return centres[y] + torch.randn(n, dim), y


@program(steps=150, adversarial="the hinge is exactly zero in the end, and so is every gradient")
def hinge_to_zero(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A multi-class hinge loss on separable data: once the margins hold, loss and gradients are exactly zero."""
    torch.manual_seed(seed)
    x, y = clusters(96)
    x = 2 * x
    model = mlp(16, 48, 5)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = F.multi_margin_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


@program(steps=120, adversarial="log_softmax twice is harmless: log-probabilities are legal scores")
def log_probabilities_as_scores(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The model ends in LogSoftmax and the loss is CrossEntropyLoss, which changes nothing at all."""
    torch.manual_seed(seed)
    model = nn.Sequential(mlp(16, 64, 32, 5), nn.LogSoftmax(dim=-1))
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x, y = clusters(64)
        loss = nn.CrossEntropyLoss()(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


@program(steps=120, adversarial="probabilities, but into a loss that wants them")
def probabilities_into_nll(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Softmax in the model, its logarithm in the loss: `nll_loss(log(p + 1e-9))`."""
    torch.manual_seed(seed)
    model = nn.Sequential(mlp(16, 64, 5), nn.Softmax(dim=1))
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x, y = clusters(64)
        loss = F.nll_loss((model(x) + 1e-9).log(), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


@program(steps=150, adversarial="a loss of a millionth: tiny gradients that Adam does not mind")
def loss_in_millionths(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A loss weight of 1e-6 under Adam with a small epsilon; everything else is ordinary."""
    torch.manual_seed(seed)
    model = mlp(16, 64, 64, 5, act=nn.SiLU)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3, eps=1e-16)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x, y = clusters(64)
        loss = 1e-6 * F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


@program(steps=150, adversarial="clipped to a thousandth in every step, which Adam does not mind either")
def clipped_under_adam(steps: int, seed: int, fault: str) -> dict[str, float]:
    """clip_grad_norm_ at 1e-3 before Adam: the direction is kept and Adam divides the size out."""
    torch.manual_seed(seed)
    model = mlp(16, 64, 64, 5)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3, eps=1e-12)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x, y = clusters(64)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        opt.step()
    return {"loss": loss.item()}


@program(steps=180, adversarial="the loss jumps threefold whenever a new task begins")
def tasks_in_turn(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Continual learning: three tasks of 60 steps each; the labels are permuted at every change of task."""
    torch.manual_seed(seed)
    model = mlp(16, 64, 64, 5)
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = torch.tensor(0.0)
    for step in range(steps):
        x, y = clusters(64)
        loss = F.cross_entropy(model(x), (y + 2 * (step // 60)) % 5)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


@program(steps=150, adversarial="95 of 100 labels are the same")
def rare_events(steps: int, seed: int, fault: str) -> dict[str, float]:
    """One event in twenty, weighted by `pos_weight`; logistic loss, Adadelta."""
    torch.manual_seed(seed)
    model = mlp(16, 48, 1)
    opt = torch.optim.Adadelta(model.parameters(), lr=1.0)
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([19.0]))
    loss = torch.tensor(0.0)
    for _ in range(steps):
        y = (torch.rand(256, 1) < 0.05).float()
        x = torch.randn(256, 16) + 1.2 * y
        loss = criterion(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


@program(steps=150, adversarial="a Gaussian likelihood falls below zero on its way")
def heteroscedastic(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Mean and variance of a target by `gaussian_nll_loss`; NAdam."""
    torch.manual_seed(seed)
    model = mlp(4, 64, 64, 2, act=nn.Tanh)
    opt = torch.optim.NAdam(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x = torch.randn(128, 4)
        y = torch.sin(x[:, 0]) + 0.05 * (1 + x[:, 1].abs()) * torch.randn(128)
        out = model(x)
        loss = F.gaussian_nll_loss(out[:, 0], y, F.softplus(out[:, 1]) + 1e-4)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


@program(steps=150, adversarial="weights clamped at zero through `.data` after every step, on purpose")
def monotone_network(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A network that may only rise with its inputs: negative weights are set to zero after each step."""
    torch.manual_seed(seed)
    model = mlp(3, 32, 1, act=nn.Tanh)
    for p in model.parameters():
        if p.ndim > 1:
            p.data.abs_()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x = torch.rand(128, 3)
        y = x[:, :1].square() + torch.sqrt(x[:, 1:2] + 0.1) + 0.05 * torch.randn(128, 1)
        loss = F.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        for name, p in model.named_parameters():
            if name.endswith("weight"):
                p.data.clamp_(min=0)
    return {"loss": loss.item()}


@program(steps=150)
def logistic_regression(steps: int, seed: int, fault: str) -> dict[str, float]:
    """One linear layer and Adagrad: the smallest model there is."""
    torch.manual_seed(seed)
    model = nn.Linear(16, 5)
    opt = torch.optim.Adagrad(model.parameters(), lr=0.1)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x, y = clusters(32)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


class DeepSet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.phi, self.rho = mlp(2, 48, 48, act=nn.ELU), mlp(48, 48, 1, act=nn.ELU)

    def forward(self, x: Tensor) -> Tensor:
        return self.rho(self.phi(x).sum(1)).squeeze(-1)


@program(steps=200, adversarial="sums over twenty elements and targets of about forty: large gradients")
def deep_sets(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Deep Sets predicts a set's squared length; the loss is summed, clipping tames it; cyclic learning rate."""
    torch.manual_seed(seed)
    model = DeepSet()
    opt = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    cyclic = torch.optim.lr_scheduler.CyclicLR(opt, 1e-4, 2e-3, step_size_up=25)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x = torch.randn(32, 20, 2)
        loss = F.smooth_l1_loss(model(x), x.square().sum((1, 2)), reduction="sum")
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        opt.step()
        cyclic.step()
    return {"loss": loss.item() / 32}
