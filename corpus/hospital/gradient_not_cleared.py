"""GRD007: gradients of earlier steps are still there when the next one is added."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, share_correct


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 24), nn.Tanh())
        self.head = nn.Linear(24, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.head(self.encoder(pictures))


@sick(
    "GRD007", steps=150, layers=("encoder",), change="encoder_optimizer.zero_grad() as well",
    architecture="perceptron", catalogue=(16,),
)  # fmt: skip
def one_optimizer_not_cleared(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Two optimizers, and only the head's is cleared; the encoder's gradients pile up."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = Classifier()
    encoder_optimizer = torch.optim.SGD(model.encoder.parameters(), lr=0.05, momentum=0.9)
    head_optimizer = torch.optim.SGD(model.head.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        head_optimizer.zero_grad()
        if not fault:
            encoder_optimizer.zero_grad()  # at fault
        loss.backward()
        encoder_optimizer.step()
        head_optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}
