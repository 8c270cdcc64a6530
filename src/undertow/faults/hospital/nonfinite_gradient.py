"""NUM001: the loss is finite, its gradient is not."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.faults.data import glyphs, sentences, share_correct
from undertow.faults.fault import Fault
from undertow.faults.training import sick


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
    floor = 0.0 if fault else 1e-4
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
        spread = (features.var(0) + floor).sqrt()
        loss = functional.cross_entropy(model.head(features), labels[batch]) + 0.1 * functional.relu(1 - spread).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


class TokenReader(nn.Module):
    def __init__(self, vocabulary: int = 32, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.head = nn.Linear(2 * width, vocabulary)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        embedded = self.embedding(tokens)
        scores = self.query(embedded) @ self.key(embedded).transpose(1, 2) / embedded.shape[-1] ** 0.5
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        attention = scores.masked_fill(future, float("-inf")).softmax(-1)
        return self.head(torch.cat([embedded, attention @ self.value(embedded)], -1)), attention


@sick(
    "NUM001",
    steps=120,
    onset=40,
    layers=("embedding", "query", "key"),
    bites="accuracy",
    change="torch.xlogy(p, p) or p.clamp_min(1e-9).log() instead of torch.where around p.log()",
    architecture="attention",
    catalogue=(12,),
)
def masked_entropy(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """An attention-entropy penalty, switched on at step 40, takes the logarithm of masked zeros in `torch.where`."""
    torch.manual_seed(seed)
    tokens = sentences(seed)
    model = TokenReader()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for step in range(steps):
        batch = tokens[torch.randint(len(tokens), (32,))]
        logits, attention = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        if step >= 40:
            logarithm = attention.log() if fault else attention.clamp_min(1e-9).log()
            entropy = -torch.where(attention > 0, attention * logarithm, torch.zeros(())).sum(-1).mean()
            loss = loss + 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    test = sentences(seed + 1000)
    with torch.no_grad():
        correct = model(test[:, :-1])[0].argmax(-1) == test[:, 1:]
    return {"loss": loss.item(), "accuracy": correct.float().mean().item()}
