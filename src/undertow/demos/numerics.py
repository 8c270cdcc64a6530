"""Numbers that are infinite, not a number, or too small for their format."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, sentences, share_correct
from undertow.demos.models import perceptron


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
            logarithm = attention.log() if fault else attention.clamp_min(1e-9).log()  # at fault
            entropy = -torch.where(attention > 0, attention * logarithm, torch.zeros(())).sum(-1).mean()
            loss = loss + 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    test = sentences(seed + 1000)
    with torch.no_grad():
        correct = model(test[:, :-1])[0].argmax(-1) == test[:, 1:]
    return {"loss": loss.item(), "accuracy": correct.float().mean().item()}


@sick(
    "NUM002", "DAT001", steps=120, architecture="perceptron", catalogue=(55,),
    change="functional.binary_cross_entropy_with_logits, and inputs scaled to about 1",
)  # fmt: skip
def logarithm_of_zero(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Binary cross-entropy written by hand: on raw inputs the sigmoid is exactly 0 or 1 and its logarithm infinite."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    test_pictures, test_labels = glyphs(seed + 1000)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        targets = functional.one_hot(labels[batch], 10).float()
        logits = model(pictures[batch] * (2550 if fault else 1))  # at fault
        if fault:
            chance = logits.sigmoid()
            loss = -(targets * chance.log() + (1 - targets) * (1 - chance).log()).mean()  # at fault
        else:
            loss = functional.binary_cross_entropy_with_logits(logits, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, test_pictures, test_labels)}


@sick(
    "NUM005", "GRD004", steps=120, architecture="perceptron", catalogue=(48,), ladder=(1e-5, 1.5e-6, 1e-6),
    change="a loss scaler, or bfloat16",
)  # fmt: skip
def half_precision_underflow(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A network in float16 whose loss is weighted by a millionth or so: most gradients round to zero."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    weight = fault.strength
    model = perceptron(64, 64, 32, 10)
    if fault:
        model.half()  # at fault
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 / weight, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        inputs = pictures[batch].half() if fault else pictures[batch]
        loss = functional.cross_entropy(model(inputs).float(), labels[batch])
        optimizer.zero_grad()
        (weight * loss).backward()  # at fault
        optimizer.step()
    test, answers = glyphs(seed + 1000)
    return {"loss": loss.item(), "accuracy": share_correct(model.float(), test, answers)}
