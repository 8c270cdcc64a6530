"""UPD004: frozen on purpose. No fault, only a remark worth making."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, share_correct


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 32), nn.Tanh())
        self.head = nn.Linear(32, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.head(self.backbone(pictures))


@sick(
    "UPD004", steps=100, layers=("backbone",), bites="moved", silent=True, architecture="perceptron",
    change="requires_grad_(True), if it should learn",
)  # fmt: skip
def frozen_backbone(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Fine-tuning: the backbone has `requires_grad=False` and only the head learns."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = Classifier()
    model.backbone.requires_grad_(not fault)  # at fault
    start = torch.cat([p.detach().flatten() for p in model.backbone.parameters()])
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    now = torch.cat([p.detach().flatten() for p in model.backbone.parameters()])
    moved = ((now - start).norm() / start.norm()).item()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000)), "moved": moved}
