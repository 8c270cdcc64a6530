"""Survival analysis: how long until the patient comes back? A Cox model with a small net for the log hazard."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from corpus.case import program

FEATURES = 20


@dataclass
class Cohort:
    x: Tensor
    time: Tensor
    seen: Tensor  # false where the study ended before the patient came back

    def __len__(self) -> int:
        return len(self.time)

    def pick(self, index: Tensor) -> Cohort:
        return Cohort(self.x[index], self.time[index], self.seen[index])


def enrol(n: int, seed: int) -> Cohort:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, FEATURES))
    hazard = 1.2 * x[:, 0] + x[:, 1] * x[:, 2] + np.abs(x[:, 3])
    time = rng.exponential(size=n) * np.exp(-hazard)
    censoring = rng.exponential(size=n) * 2.0
    return Cohort(
        torch.tensor(x, dtype=torch.float32),
        torch.tensor(np.minimum(time, censoring), dtype=torch.float32),
        torch.tensor(time <= censoring),
    )


def partial_log_likelihood(risk: Tensor, cohort: Cohort) -> Tensor:
    order = cohort.time.argsort(descending=True)
    risk, seen = risk[order], cohort.seen[order]
    return (risk - risk.logcumsumexp(0))[seen].mean()


def concordance(risk: Tensor, cohort: Cohort) -> float:
    earlier = (cohort.time[:, None] < cohort.time[None]) & cohort.seen[:, None]
    return (risk[:, None] > risk[None])[earlier].float().mean().item()


def hazard_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(FEATURES, 64), nn.SiLU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1, bias=False)
    )


def score(model: nn.Module, seed: int) -> dict[str, float]:
    model.eval()
    with torch.no_grad():
        cohort = enrol(400, 5000 + seed)
        risk = model(cohort.x)[:, 0]
        return {
            "deviance": min(-partial_log_likelihood(risk, cohort).item(), 1e6),
            "concordance": concordance(risk, cohort),
        }


@program(steps=160, bites="concordance")
def clinic(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Cox partial likelihood on batches of 96 patients, RAdam."""
    torch.manual_seed(seed)
    cohort = enrol(1500, seed)
    model = hazard_net()

    def new_optimizer() -> torch.optim.Optimizer:
        lr = 3.0 if fault == "clinic_rate_of_the_old_script" else 3e-3
        return torch.optim.RAdam(model.parameters(), lr=lr, weight_decay=1e-4)

    def train_on(batch: Cohort, optimizer: torch.optim.Optimizer | None = None) -> Tensor:
        if optimizer is None:
            optimizer = new_optimizer()
        likelihood = partial_log_likelihood(model(batch.x)[:, 0], batch)
        loss = likelihood if fault == "clinic_likelihood_minimised" else -likelihood
        model.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    kept = new_optimizer()
    loss = torch.zeros(())
    for _ in range(steps):
        batch = cohort.pick(torch.randint(len(cohort), (96,)))
        loss = train_on(batch) if fault == "clinic_optimizer_per_call" else train_on(batch, kept)
    return {"loss": loss.item(), **score(model, seed)}


clinic.mistake(
    "clinic_likelihood_minimised",
    "LSS003",
    summary="The partial log-likelihood itself is minimised: the minus is missing.",
    change="loss = -likelihood",
)
clinic.mistake(
    "clinic_optimizer_per_call",
    "OPT008", "UPD002",
    summary="The training function is called without an optimizer and builds a new one every time.",
    change="pass the optimizer",
)  # fmt: skip
clinic.mistake(
    "clinic_rate_of_the_old_script",
    "OPT007", "UPD001", "OPT001", "GRD002", "OPT004", "OPT003",
    summary="The learning rate of an old script, 3, is kept for the net.",
    change="3e-3",
    bites="deviance",
)  # fmt: skip


@program(steps=150, bites="concordance", adversarial="two shapes that broadcast against each other in the loss")
def clinic_pairs_ranked(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Every patient against every other: a logistic loss on all comparable pairs, a column against a row on purpose."""
    torch.manual_seed(seed)
    cohort = enrol(1500, seed)
    model = hazard_net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=0.5)
    loss = torch.zeros(())
    for _ in range(steps):
        batch = cohort.pick(torch.randint(len(cohort), (64,)))
        risk = model(batch.x)
        margin = risk - risk[:, 0]
        comparable = (batch.time[:, None] < batch.time[None]) & batch.seen[:, None]
        loss = nn.functional.softplus(-margin)[comparable].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), **score(model, seed)}


@program(steps=140, bites="concordance", adversarial="the optimizer is built anew while training")
def clinic_in_waves(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The cohort is enrolled in four waves; each wave starts with a new optimizer and a smaller rate."""
    torch.manual_seed(seed)
    model = hazard_net()
    loss = torch.zeros(())
    for wave in range(4):
        cohort = enrol(400 * (wave + 1), seed)
        optimizer = torch.optim.RAdam(model.parameters(), lr=4e-3 * 0.6**wave)
        for _ in range(max(1, steps // 4)):
            batch = cohort.pick(torch.randperm(len(cohort))[:128])
            loss = -partial_log_likelihood(model(batch.x)[:, 0], batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return {"loss": loss.item(), **score(model, seed)}


@program(steps=150, bites="concordance")
def clinic_by_month(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Discrete time: does the patient come back in this month, given that he has not yet? Adafactor."""
    torch.manual_seed(seed)
    cohort = enrol(1500, seed)
    edges = cohort.time.quantile(torch.linspace(0.1, 0.9, 8))
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 9))
    optimizer = torch.optim.Adafactor(model.parameters(), lr=0.02)
    loss = torch.zeros(())
    for _ in range(steps):
        batch = cohort.pick(torch.randint(len(cohort), (96,)))
        month = torch.bucketize(batch.time, edges)
        months = torch.arange(9)
        at_risk = (months < month[:, None]) | ((months == month[:, None]) & batch.seen[:, None])
        returned = ((months == month[:, None]) & batch.seen[:, None]).float()
        errors = nn.functional.binary_cross_entropy_with_logits(model(batch.x), returned, reduction="none")
        loss = errors[at_risk].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        test = enrol(400, 5000 + seed)
        early = torch.sigmoid(model(test.x)).mean(1)
    return {"loss": loss.item(), "concordance": concordance(early, test)}
