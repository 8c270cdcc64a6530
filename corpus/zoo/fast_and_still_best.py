"""Learning rates far above the usual ones under which these programs learn best."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from corpus.case import healthy
from undertow.demos.data import glyphs, sentences


@healthy(steps=220, architecture="recurrent", adversarial="weights that grow sixfold in steps of 2% are no fault")
def reader_at_ten_times_the_rate(steps: int, seed: int) -> dict[str, float]:
    """An LSTM under Adam at 0.03, where it reads best: what is left of the loss is the noise of the text."""
    torch.manual_seed(seed)
    tokens = sentences(seed)
    model = nn.ModuleDict(
        {"embedding": nn.Embedding(32, 24), "recurrent": nn.LSTM(24, 48, batch_first=True), "head": nn.Linear(48, 32)}
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = tokens[torch.randint(len(tokens), (16,))]
        hidden, _ = model["recurrent"](model["embedding"](batch[:, :-1]))
        loss = functional.cross_entropy(model["head"](hidden).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@healthy(
    steps=200, architecture="convolutional", adversarial="the scale of weights before a normalisation means nothing"
)
def normalised_at_a_rate_of_a_half(steps: int, seed: int) -> dict[str, float]:
    """Convolutions with batch normalisation under momentum at 0.5: weights grow, and steps shrink with that."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, noise=0.6)
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(),
        nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(),
        nn.Linear(96, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch].view(-1, 8, 8)), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@healthy(steps=240, architecture="perceptron", adversarial="what is left of the loss is noise of the labels")
def fast_on_noisy_labels(steps: int, seed: int) -> dict[str, float]:
    """A perceptron under Adam at 0.01, five times the usual rate, on labels of which a fifth are wrong."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, count=4096)
    wrong = torch.rand(len(labels)) < 0.2
    labels = torch.where(wrong, torch.randint(10, labels.shape), labels)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch].flatten(1)), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}
