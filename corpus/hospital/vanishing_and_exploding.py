"""GRD001 and GRD002: gradients that vanish or explode over depth or time."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, share_correct
from undertow.demos.gradients import start_recurrence


class PlainBlock(nn.Module):
    def __init__(self, width: int, skip: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width) if skip else nn.Identity()
        self.fc = nn.Linear(width, width)
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        branch = torch.tanh(self.fc(self.norm(x)))
        return x + branch if self.skip else branch  # at fault


@sick(
    "GRD001", "WGT003", steps=120, architecture="deep perceptron", catalogue=(11,), ladder=(12, 16, 32),
    change="return x + branch, with a LayerNorm before it",
)  # fmt: skip
def residual_forgotten(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Sixteen blocks without the skip connection they were designed with."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    blocks = [PlainBlock(32, skip=not fault) for _ in range(int(fault.strength))]
    model = nn.Sequential(nn.Linear(64, 32), *blocks, nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


class FirstToken(nn.Module):
    """Recalls the first of thirty tokens at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 16)
        self.rnn = nn.RNN(16, 48, batch_first=True)
        self.head = nn.Linear(48, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(tokens))[0][:, -1])


@sick(
    "GRD001", "WGT003", steps=200, layers=("rnn",), architecture="recurrent", catalogue=(9,), ladder=(0.6, 0.3, 0.1),
    change="an orthogonal recurrent weight, or a GRU",
)  # fmt: skip
def recurrence_forgets(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """The first of many tokens must be recalled at the end; a small recurrent weight forgets it on the way."""
    torch.manual_seed(seed)
    tokens = torch.randint(4, 10, (1024, 30))
    answers = torch.randint(4, (1024,))
    tokens[:, 0] = answers
    model = FirstToken()
    start_recurrence(model.rnn, fault.strength if fault else 1.0)  # at fault
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(tokens), (32,))
        loss = functional.cross_entropy(model(tokens[batch]), answers[batch])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, tokens, answers)}
