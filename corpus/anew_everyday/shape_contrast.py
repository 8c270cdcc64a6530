"""Representations of shapes without labels: two views, a target network, a home-made optimizer for one of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.case import program
from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs


def views(pictures: Tensor) -> tuple[Tensor, Tensor]:
    def view() -> Tensor:
        keep = (torch.rand_like(pictures) > 0.25).float()
        return keep * pictures + 0.2 * torch.randn_like(pictures)

    return view(), view()


def encoder(out: int = 16) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(64, 96), nn.LayerNorm(96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, out)
    )


def nearest_neighbour(embed: Callable[[Tensor], Tensor], seed: int) -> float:
    """How many test pictures have the label of the most similar training picture."""
    (known, labels), (asked, truth) = glyphs(seed, 600), glyphs(seed + 1000, 300)
    with torch.no_grad():
        a, b = F.normalize(embed(asked), dim=1), F.normalize(embed(known), dim=1)
    return (labels[(a @ b.T).argmax(1)] == truth).float().mean().item()


@program(steps=700, bites="spread")
def shape_alignment(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Two views are drawn together while the variance and covariance of the batch are kept (VICReg)."""
    torch.manual_seed(seed)
    pictures, _ = glyphs(seed, 1024)
    model = nn.ModuleDict(
        {"encoder": encoder(), "projector": nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))}
    )
    weights = {"align": 10.0, "variance": 10.0, "covariance": 1.0}
    if mistake == "shapes_only_drawn_together":
        weights |= {"variance": 0.0, "covariance": 0.0}  # at fault: shapes_only_drawn_together
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    for _ in range(steps):
        batch = pictures[torch.randint(len(pictures), (96,))]
        a, b = (model["projector"](model["encoder"](view)) for view in views(batch))
        terms = {"align": F.mse_loss(a, b), "variance": torch.tensor(0.0), "covariance": torch.tensor(0.0)}
        for z in (a, b):
            centred = z - z.mean(0)
            terms["variance"] = terms["variance"] + F.relu(1 - torch.sqrt(z.var(0) + 1e-4)).mean()
            cross = (centred.T @ centred / (len(z) - 1)).fill_diagonal_(0)
            terms["covariance"] = terms["covariance"] + cross.square().sum() / z.shape[1]
        loss = sum(weights[name] * term for name, term in terms.items())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        points = model["projector"](model["encoder"](pictures[:256]))
    return {
        "spread": points.std(0).mean().item(),
        "accuracy": nearest_neighbour(model["encoder"], seed),
        "loss": loss.item(),
    }


shape_alignment.mistake(
    "shapes_only_drawn_together",
    "ACT003",
    summary="Only the term that draws views together has a weight: every picture gets the same point.",
    change="weights for variance and covariance",
    layers=("encoder", "projector"),
)


class NormalisedMomentum(torch.optim.Optimizer):
    """Momentum of the gradient, of length one per tensor, times the rate."""

    def __init__(self, params: Iterable[Tensor], lr: float, beta: float, forgets_rate: bool) -> None:
        super().__init__(params, {"lr": lr, "beta": beta})
        self.forgets_rate = forgets_rate

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                mean = state.setdefault("mean", torch.zeros_like(p))
                mean.lerp_(p.grad, 1 - group["beta"])
                rate = 1.0 if self.forgets_rate else group["lr"]
                p.sub_(rate * mean / (mean.norm() + 1e-12))  # at fault: shapes_optimizer_without_rate


@sick(
    "UPD001",
    "OPT007",
    steps=700,
    change="times the rate",
    bites="accuracy",
    architecture="perceptron",
)
def shapes_optimizer_without_rate(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A student predicts its own moving average (BYOL), under an optimizer of one's own that forgot the rate."""
    torch.manual_seed(seed)
    pictures, _ = glyphs(seed, 1024)
    student, predictor = encoder(), nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    teacher = copy.deepcopy(student).requires_grad_(False)
    both = nn.ModuleList([student, predictor])
    optimizer = NormalisedMomentum(both.parameters(), lr=0.02, beta=0.9, forgets_rate=bool(fault))
    for _ in range(steps):
        a, b = views(pictures[torch.randint(len(pictures), (96,))])
        with torch.no_grad():
            goal = teacher(b)
        loss = 2 - 2 * F.cosine_similarity(predictor(student(a)), goal).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.lerp_(fast, 0.02)
    return {"accuracy": nearest_neighbour(student, seed), "loss": loss.item()}
