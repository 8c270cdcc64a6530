"""NUM001: the loss is finite, its gradient is not."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, share_correct


class SpreadClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 16))
        self.head = nn.Sequential(nn.Tanh(), nn.Linear(16, 10))

    def forward(self, pictures: Tensor) -> Tensor:
        return self.head(self.encoder(pictures))


@sick(
    "NUM001", steps=120, onset=40, layers=("encoder",), change="(variance + 1e-4).sqrt() instead of variance.sqrt()",
    architecture="perceptron", catalogue=(12,),
)  # fmt: skip
def constant_unit(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A unit is pruned at step 40; the square root of its zero variance has no finite gradient."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = SpreadClassifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    floor = 0.0 if fault else 1e-4  # at fault
    loss = torch.tensor(0.0)
    for step in range(steps):
        if step == 40:
            last = model.encoder[2]
            assert isinstance(last, nn.Linear)
            with torch.no_grad():
                last.weight[3] = 0
                last.bias[3] = 0
        batch = torch.randint(len(pictures), (64,))
        features = model.encoder(pictures[batch])
        spread = (features.var(0) + floor).sqrt()  # at fault
        loss = functional.cross_entropy(model.head(features), labels[batch]) + 0.1 * functional.relu(1 - spread).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}
