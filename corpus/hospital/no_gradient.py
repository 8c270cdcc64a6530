"""GRD003: the graph is cut, and trainable layers before the cut get no gradient."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, share_correct


class EncoderAndHead(nn.Module):
    def __init__(self, encoder_learns: bool) -> None:
        super().__init__()
        self.encoder_learns = encoder_learns
        self.encoder = nn.Sequential(nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 6), nn.Tanh())
        self.head = nn.Linear(6, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.encoder_learns and torch.is_grad_enabled()):  # at fault
            features = self.encoder(pictures)
        return self.head(features)


@sick(
    "GRD003", steps=200, layers=("encoder",), change="leave the no_grad block around the encoder out",
    architecture="perceptron", catalogue=(18,),
)  # fmt: skip
def encoder_under_no_grad(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """The encoder runs under `no_grad`, yet its parameters are in the optimizer."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = EncoderAndHead(encoder_learns=not fault)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}
