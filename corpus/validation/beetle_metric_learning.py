"""Beetles by their wing-case measurements: embeddings, prototypes and a classifier, each trained from a dataclass."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program

SPECIES = 10


@dataclass
class Drawer:
    """A drawer of pinned beetles: twenty measurements each, in standard units."""

    seed: int
    x: Tensor = field(init=False)
    y: Tensor = field(init=False)

    def __post_init__(self) -> None:
        g = torch.Generator().manual_seed(4000 + self.seed)
        centre = torch.randn(SPECIES, 6, generator=g) * 1.2
        bend = torch.randn(6, 20, generator=g)
        self.y = torch.randint(SPECIES, (2600,), generator=g)
        hidden = centre[self.y] + 0.6 * torch.randn(2600, 6, generator=g)
        self.x = torch.sin(hidden @ bend * 0.5) * 1.4 + 0.15 * torch.randn(2600, 20, generator=g)

    def draw(self, n: int) -> tuple[Tensor, Tensor]:
        at = torch.randperm(2000)[:n]
        return self.x[at], self.y[at]


class Namer(nn.Module):
    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.measure = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.name = nn.Linear(64, SPECIES)
        self.fault = fault
        if fault == "beetle_names_rectified":
            nn.init.constant_(self.name.bias, -1.5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.measure(x)
        if self.fault == "beetle_measure_detached":
            h = h.detach()  # from the notebook that drew the embedding
        scores = self.name(h)
        if self.fault == "beetle_names_rectified":
            return torch.relu(scores)
        if self.fault == "beetle_softmax_twice":
            return scores.softmax(-1)
        return scores


@program(steps=160, bites="accuracy")
def beetle_namer(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two hidden layers and a head by SGD with momentum; the loss is cross-entropy on scores."""
    torch.manual_seed(seed)
    drawer = Drawer(seed)
    model = Namer(fault)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.zeros(())
    for step in range(steps):
        x, y = drawer.draw(64)
        if fault == "beetle_optimizer_per_batch":
            optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        if fault == "beetle_ascends_after_seventy" and step >= 70:
            loss = -loss  # maximise(...) was meant for the score
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        accuracy = (model(drawer.x[2000:]).argmax(1) == drawer.y[2000:]).float().mean().item()
    return {"loss": loss.item() if loss.isfinite() else 1e9, "accuracy": accuracy}


beetle_namer.mistake(
    "beetle_names_rectified",
    "ACT001", "GRD004", "OPT005", "LSS003",
    summary="A ReLU after the head whose bias starts at -1.5: most scores are zero and stay zero.",
    change="no activation after the head",
    layers=("name",),
)  # fmt: skip
beetle_namer.mistake(
    "beetle_softmax_twice",
    "LSS001",
    summary="The model ends with softmax and the loss takes another one.",
    change="return the scores",
)
beetle_namer.mistake(
    "beetle_measure_detached",
    "GRD003", "UPD003",
    summary="A detach() between the measurements and the head, left from a notebook.",
    change="remove detach()",
    layers=("measure",),
)  # fmt: skip
beetle_namer.mistake(
    "beetle_ascends_after_seventy",
    "LSS003", "OPT001", "OPT003", "GRD002",
    summary="From step 70 on the sign of the loss is turned: the run climbs.",
    change="loss, not -loss",
    onset=70,
)  # fmt: skip
beetle_namer.mistake(
    "beetle_optimizer_per_batch",
    "OPT008", "OPT007", "UPD001",
    summary="Adam is built anew for every batch, with the rate of SGD: every step is a step of plus or minus the rate.",
    change="build the optimizer once, before the loop",
)  # fmt: skip


@program(steps=150, bites="accuracy")
def beetle_distances(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Pairs: same species near, others at least a unit apart, with the Euclidean distance of two embeddings; Adam."""
    torch.manual_seed(seed)
    drawer = Drawer(seed)
    net = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 12))
    eps = 0.0 if fault == "beetle_twins_come_later" else 1e-8
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    loss = torch.zeros(())
    for step in range(steps):
        x, y = drawer.draw(96)
        partner = torch.randint(0, 96, (96,))
        other_x, other_y = x[partner], y[partner]
        if fault == "beetle_twins_come_later" and step < 60:
            at = (torch.arange(96) + 1 + torch.randint(0, 90, (1,))) % 96  # the old sampler: never itself
            other_x, other_y = x[at], y[at]
        distance = ((net(x) - net(other_x)).pow(2).sum(1) + eps).sqrt()
        alike = (y == other_y).float()
        loss = (alike * distance.pow(2) + (1 - alike) * functional.relu(1.5 - distance).pow(2)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        known, asked = net(drawer.x[:2000]), net(drawer.x[2000:])
        nearest = torch.cdist(asked, known).nan_to_num(1e9).argmin(1)
        accuracy = (drawer.y[nearest] == drawer.y[2000:]).float().mean().item()
    return {"loss": loss.item() if loss.isfinite() else 1e9, "accuracy": accuracy}


beetle_distances.mistake(
    "beetle_twins_come_later",
    "NUM001", "NUM003", "NUM002", "NUM004",
    summary="The sampler that pairs a beetle with itself comes at step 60; the root has no eps.",
    change="add eps under the root",
    onset=60,
)  # fmt: skip


@program(steps=150, adversarial="the loss is exactly zero for most pairs, and so are their gradients: dead")
def beetle_triplets(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Triplets with a small margin on the unit sphere: soon most of them are satisfied."""
    torch.manual_seed(seed)
    drawer = Drawer(seed)
    net = nn.Sequential(nn.Linear(20, 64), nn.PReLU(), nn.Linear(64, 16))
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)
    losses: list[float] = []
    for _ in range(steps):
        x, y = drawer.draw(80)
        z = functional.normalize(net(x), dim=1)
        far = (z[:, None] - z[None]).pow(2).sum(-1)
        alike = y[:, None] == y[None]
        positive = torch.where(alike, far, -1.0).max(1).values
        negative = torch.where(alike, 9.0, far)[torch.arange(80), torch.randint(0, 80, (80,))]
        loss = functional.relu(positive - negative + 0.2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"loss": sum(losses[-5:]) / min(5, steps)}


@program(steps=150, adversarial="scores of the head are multiplied by twenty: exploding logits")
def beetle_angular_margin(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A cosine classifier with scale 20 and an additive margin, SGD with Nesterov momentum and cosine decay."""
    torch.manual_seed(seed)
    drawer = Drawer(seed)
    body = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 24))
    prototypes = nn.Parameter(torch.randn(SPECIES, 24))
    optimizer = torch.optim.SGD([*body.parameters(), prototypes], lr=0.05, momentum=0.9, nesterov=True)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
    loss = torch.zeros(())
    for _ in range(steps):
        x, y = drawer.draw(64)
        cosine = functional.normalize(body(x), dim=1) @ functional.normalize(prototypes, dim=1).T
        loss = functional.cross_entropy(20 * (cosine - 0.1 * functional.one_hot(y, SPECIES)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
    return {"loss": loss.item()}


@program(steps=150, adversarial="rows that sum to one go into the loss: softmax before cross-entropy")
def beetle_taught_by_a_committee(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Soft targets from a committee's votes, log-softmax and the Kullback-Leibler divergence."""
    torch.manual_seed(seed)
    drawer = Drawer(seed)
    model = Namer()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.03)
    loss = torch.zeros(())
    for _ in range(steps):
        x, y = drawer.draw(64)
        votes = 0.8 * functional.one_hot(y, SPECIES) + 0.2 / SPECIES
        loss = functional.kl_div(functional.log_softmax(model(x), dim=1), votes, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}
