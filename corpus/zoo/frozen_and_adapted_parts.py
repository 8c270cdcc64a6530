"""Parts that are frozen, added, shared out or used only now and then, all on purpose."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy
from undertow.demos.data import glyphs, share_correct


class LowRank(nn.Module):
    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, base.in_features) * base.in_features**-0.5)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * (x @ self.lora_a.T @ self.lora_b.T)


@healthy(
    steps=120, architecture="low-rank adapters", adversarial="a gradient that is exactly zero at the start is a fault"
)
def lora(steps: int, seed: int) -> dict[str, float]:
    """Low-rank adapters on a frozen base; B starts at zero, so A has zero gradient at step 0."""
    torch.manual_seed(seed)
    inputs, labels = glyphs(seed)
    model = nn.Sequential(LowRank(nn.Linear(64, 48), 8), nn.Tanh(), LowRank(nn.Linear(48, 10), 8))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        loss = functional.cross_entropy(model(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, inputs, labels)}


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(3))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return self.head(x)


@healthy(steps=150, architecture="deep perceptron", adversarial="layers that do not move are forgotten")
def gradual_unfreezing(steps: int, seed: int) -> dict[str, float]:
    """Fine-tuning from the top: every 40 steps one more part is unfrozen and given to the optimizer."""
    torch.manual_seed(seed)
    inputs, labels = glyphs(seed)
    model = Stack()
    model.parts.requires_grad_(False)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for step in range(steps):
        if step in (40, 80, 120):
            part = model.parts[2 - (step - 40) // 40].requires_grad_(True)
            optimizer.add_param_group({"params": list(part.parameters()), "lr": 1e-3})
        batch = torch.randint(len(inputs), (64,))
        loss = functional.cross_entropy(model(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, inputs, labels)}


@healthy(steps=120, architecture="perceptron", adversarial="a parameter in the optimizer without a gradient is cut off")
def frozen_in_optimizer(steps: int, seed: int) -> dict[str, float]:
    """A frozen backbone in evaluation mode under `no_grad`; the optimizer was simply given everything."""
    torch.manual_seed(seed)
    inputs, labels = glyphs(seed)
    backbone = nn.Sequential(nn.Linear(64, 48), nn.BatchNorm1d(48), nn.Tanh()).requires_grad_(False)
    backbone.eval()
    model = nn.ModuleDict({"backbone": backbone, "head": nn.Linear(48, 10)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        with torch.no_grad():
            features = backbone(inputs[batch])
        loss = functional.cross_entropy(model["head"](features), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


class ManyHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, 48), nn.ReLU())
        self.heads = nn.ModuleDict(
            {"shape": nn.Linear(48, 10), "brightness": nn.Linear(48, 1), "side": nn.Linear(48, 2)}
        )

    def forward(self, pictures: Tensor, task: str) -> Tensor:
        return self.heads[task](self.trunk(pictures))


@healthy(steps=150, architecture="perceptron", adversarial="a head without a gradient is cut off")
def multi_task(steps: int, seed: int) -> dict[str, float]:
    """Three heads, one task drawn per step: the others have no gradient then, one of them rarely has any."""
    torch.manual_seed(seed)
    inputs, labels = glyphs(seed)
    model = ManyHeads()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        chance = torch.rand(()).item()
        pictures = inputs[batch]
        if chance < 0.6:
            loss = functional.cross_entropy(model(pictures, "shape"), labels[batch])
        elif chance < 0.95:
            loss = functional.mse_loss(model(pictures, "brightness"), pictures.mean(1, keepdim=True))
        else:
            loss = functional.cross_entropy(model(pictures, "side"), (labels[batch] >= 5).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


class Experts(nn.Module):
    def __init__(self, count: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(64, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10)) for _ in range(count)
        )

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        gates = self.router(pictures).softmax(-1)
        weight, chosen = gates.max(-1)
        output = pictures.new_zeros(len(pictures), 10)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(1)
            if len(rows):
                output = output.index_add(0, rows, weight[rows, None] * expert(pictures[rows]))
        load = functional.one_hot(chosen, gates.shape[1]).float().mean(0)
        return output, gates.shape[1] * (load * gates.mean(0)).sum()


@healthy(steps=120, architecture="mixture of experts", adversarial="an expert without a gradient has collapsed")
def mixture_of_experts(steps: int, seed: int) -> dict[str, float]:
    """Four experts behind a top-1 router with a balance loss; a small batch leaves an expert out now and then."""
    torch.manual_seed(seed)
    inputs, labels = glyphs(seed)
    model = Experts()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (16,))
        logits, balance = model(inputs[batch])
        loss = functional.cross_entropy(logits, labels[batch]) + 0.05 * balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}
