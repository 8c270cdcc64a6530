"""OPT007: a learning rate ten to a hundred times too high, under which the loss falls all the same."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, sentences, share_correct
from undertow.demos.models import Decoder, next_token_loss, perceptron


@sick(
    "OPT007", "UPD001", steps=260, bites="error", architecture="transformer", catalogue=(38,),
    ladder=(0.1, 0.12, 0.15), change="a learning rate of 6e-3",
)  # fmt: skip
def gpt_at_twenty_times_the_rate(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A GPT under AdamW with twenty times the rate it needs, and no warm-up."""
    torch.manual_seed(seed)
    tokens = sentences(seed, count=4096, back=2)
    model = Decoder(depth=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=fault.strength if fault else 6e-3)  # at fault
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = next_token_loss(model, tokens[torch.randint(len(tokens), (16,))])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        error = next_token_loss(model, sentences(seed + 1000, back=2))
    return {"loss": loss.item(), "error": error.item()}


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4)
        )
        self.head = nn.Linear(96, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x.view(-1, 1, 8, 8)).flatten(1))


@sick(
    "OPT007", "UPD001", "OPT001", steps=240, architecture="convolutional", catalogue=(38,), ladder=(0.7, 0.8, 0.9),
    change="a learning rate of 0.05",
)  # fmt: skip
def convolutions_at_a_rate_of_one(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Convolutions without normalisation under momentum, with sixteen times the rate that fits."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, noise=0.9)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=fault.strength if fault else 0.05, momentum=0.9)  # at fault
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000, noise=0.9))}


@sick(
    "OPT007", "UPD001", steps=240, architecture="perceptron", catalogue=(38,), ladder=(0.05, 0.06, 0.08),
    change="a learning rate of 2e-3",
)  # fmt: skip
def perceptron_at_thirty_times_the_rate(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A perceptron on noisy pictures under Adam, with thirty times the usual rate."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, noise=1.2)
    model = perceptron(64, 64, 64, 32, 10, activation=nn.GELU)
    optimizer = torch.optim.Adam(model.parameters(), lr=fault.strength if fault else 2e-3)  # at fault
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000, noise=1.2))}
