"""ACT001 and ACT002: units that are never active, or always at their limit."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, sentences, share_correct
from undertow.demos.models import perceptron


@sick(
    "ACT001", "GRD004", steps=150, onset=60, layers=("conv2", "relu2"), architecture="convolutional", catalogue=(6,),
    onsets=(100,), change="leave the biases alone",
)  # fmt: skip
def channels_die(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A correction of the biases with the wrong sign, at step 60, silences every channel of the second convolution."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.relu1 = nn.Conv2d(1, 12, 3, padding=1), nn.ReLU()
            self.conv2, self.relu2 = nn.Conv2d(12, 24, 3, padding=1), nn.ReLU()
            self.pool = nn.AvgPool2d(4)
            self.head = nn.Linear(96, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = self.relu1(self.conv1(x.view(-1, 1, 8, 8)))
            return self.head(self.pool(self.relu2(self.conv2(x))).flatten(1))

    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for step in range(steps):
        if fault and step == fault.onset:
            assert model.conv2.bias is not None
            model.conv2.bias.data -= 100  # at fault
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


@sick(
    "ACT001", "GRD004", steps=120, layers=("head", "out"), architecture="perceptron", catalogue=(15,),
    change="no activation after the last layer",
)  # fmt: skip
def relu_on_logits(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A ReLU follows the last layer, whose biases start at −2: all logits are zero and stay zero."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
            self.head = nn.Linear(32, 10)
            self.out = nn.ReLU() if fault else nn.Identity()  # at fault
            nn.init.constant_(self.head.bias, -2.0)  # a rare event each, so start low  # at fault

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.head(self.body(x)))

    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = criterion(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


@sick(
    "DAT001", "ACT002", steps=120, architecture="perceptron", catalogue=(10,), ladder=(20, 50, 500),
    change="divide the inputs by their standard deviation",
)  # fmt: skip
def tanh_on_large_inputs(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Inputs fifty times too large hold almost every tanh unit at plus or minus one."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    test, answers = glyphs(seed + 1000)
    scale = fault.strength if fault else 1.0  # at fault
    model = perceptron(64, 16, 16, 10, activation=nn.Tanh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(scale * pictures[batch]), labels[batch])  # at fault
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, scale * test, answers)}


class GatedReader(nn.Module):
    """A recurrent reader whose state passes a gate before the head."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 24)
        self.recurrent = nn.GRU(24, 32, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.gate = nn.Tanh()
        self.head = nn.Linear(32, 32)
        self.gain = gain

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.recurrent(self.embedding(tokens))
        return self.head(self.gate(self.gain * self.norm(hidden)))  # at fault


@sick(
    "ACT002", steps=200, layers=("gate", "norm"), architecture="recurrent", catalogue=(10,), ladder=(30, 200, 2000),
    change="no gain before the tanh",
)  # fmt: skip
def saturated_gate(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A tanh gate of an GRU reader gets two hundred times its input, from a temperature turned upside down."""
    torch.manual_seed(seed)
    tokens = sentences(seed, back=2)
    model = GatedReader(fault.strength if fault else 1.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = tokens[torch.randint(len(tokens), (16,))]
        loss = functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    test = sentences(seed + 1000, back=2)
    return {"loss": loss.item(), "accuracy": share_correct(model, test[:, :-1], test[:, 1:])}
