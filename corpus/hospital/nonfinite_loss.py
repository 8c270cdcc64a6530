"""NUM002: the loss itself is infinite or not a number."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, share_correct


@sick(
    "NUM002", "DAT002", steps=120, onset=50, bites="finite", architecture="perceptron", catalogue=(58,),
    change="scale the batch as all others, or predict a clamped log-rate",
)  # fmt: skip
def overflowing_loss(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A Poisson rate is `exp` of the output; one unscaled batch at step 50 makes it overflow."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=2e-3, momentum=0.9)
    loss = torch.tensor(0.0)
    for step in range(steps):
        batch = torch.randint(len(pictures), (64,))
        inputs, counts = pictures[batch], labels[batch].float()
        if fault and step == 50:
            inputs = inputs * 4080  # at fault
        log_rate = model(inputs).squeeze(1)
        loss = (log_rate.exp() - counts * log_rate).mean()  # at fault
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "finite": float(loss.isfinite())}


class NaiveSoftmax(nn.Module):
    def forward(self, scores: Tensor) -> Tensor:
        exponential = scores.exp()  # at fault
        return exponential / exponential.sum(-1, keepdim=True)  # at fault


class Pooled(nn.Module):
    """Sixteen patches of a picture, pooled by attention."""

    def __init__(self, softmax: nn.Module) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 24, 2, stride=2)
        self.score = nn.Linear(24, 1)
        self.softmax = softmax
        self.offset = 0.0  # of no meaning: a softmax does not see it
        self.head = nn.Linear(24, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        patches = self.patches(pictures.view(-1, 1, 8, 8)).flatten(2).transpose(1, 2).relu()
        weights = self.softmax(self.score(patches).squeeze(-1) + self.offset)
        return self.head((weights.unsqueeze(-1) * patches).sum(1))


@sick(
    "NUM004", "NUM002", steps=120, onset=60, layers=("softmax",), architecture="attention", onsets=(20,),
    change="scores.softmax(-1), which subtracts the largest score first",
)  # fmt: skip
def naive_softmax(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A softmax written by hand overflows when an offset is added to all scores at step 60."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = Pooled(NaiveSoftmax() if fault else nn.Softmax(-1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loss = torch.tensor(0.0)
    for step in range(steps):
        if step == fault.onset:
            model.offset = 100.0
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}
