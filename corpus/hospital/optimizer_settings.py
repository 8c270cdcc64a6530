"""OPT008: a setting of the optimizer defeats it."""

from __future__ import annotations

import statistics

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import curves, glyphs, sentences, share_correct
from undertow.demos.models import Decoder, next_token_loss, perceptron, share_of_next_tokens


@sick(
    "OPT008", steps=150, bites="error", architecture="perceptron", catalogue=(21,), onsets=(50,),
    change="build the optimizer once, before the loop",
)  # fmt: skip
def optimizer_rebuilt(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Adam is built anew in every step: it has no memory, and every weight moves by the full rate, up or down."""
    torch.manual_seed(seed)
    inputs, targets = curves(seed)
    model = perceptron(8, 64, 64, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loss = torch.tensor(0.0)
    for step in range(steps):
        if fault.at(step):
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)  # at fault
        batch = torch.randint(len(inputs), (64,))
        optimizer.zero_grad()
        loss = functional.mse_loss(model(inputs[batch]).squeeze(1), targets[batch])
        loss.backward()
        optimizer.step()
    test, answers = curves(seed + 1000)
    with torch.no_grad():
        error = functional.mse_loss(model(test).squeeze(1), answers) / answers.var()
    return {"loss": loss.item(), "error": error.item()}


@sick(
    "OPT008", steps=60, architecture="convolutional", catalogue=(21,), change="build the optimizer once per training",
)  # fmt: skip
def momentum_forgotten(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A function `train_batch` makes its own SGD: the momentum it asks for never builds up."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(128, 10),
    )  # fmt: skip

    def make_optimizer() -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)  # at fault

    def train_batch(batch: Tensor, optimizer: torch.optim.Optimizer) -> float:
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    optimizer, loss = make_optimizer(), 0.0
    for _ in range(steps):
        loss = train_batch(torch.randint(len(pictures), (32,)), make_optimizer() if fault else optimizer)  # at fault
    return {"loss": loss, "accuracy": share_correct(model, *glyphs(seed + 1000))}


@sick(
    "OPT008", "WGT005", steps=150, architecture="perceptron", catalogue=(43,), ladder=(10, 50, 300), onsets=(60,),
    change="a weight decay of 0.01",
)  # fmt: skip
def weight_decay_wins(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """AdamW with a weight decay of 50: all weights shrink towards zero, whatever the gradient says."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = perceptron(64, 64, 32, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    loss = torch.tensor(0.0)
    for step in range(steps):
        if fault.at(step):
            optimizer.param_groups[0]["weight_decay"] = fault.strength  # at fault
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


@sick(
    "OPT008", "UPD002", steps=150, architecture="transformer", catalogue=(44,), ladder=(0.1, 1.0, 100.0),
    change="the default eps of 1e-8",
)  # fmt: skip
def adam_eps_too_large(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Adam with eps = 1, far above every gradient: it has become SGD with a tiny learning rate."""
    torch.manual_seed(seed)
    tokens = sentences(seed)
    model = Decoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, eps=fault.strength if fault else 1e-8)  # at fault
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = next_token_loss(model, tokens[torch.randint(len(tokens), (16,))])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_of_next_tokens(model, sentences(seed + 1000))}


@sick(
    "OPT008", "OPT003", "UPD001", "DAT002", steps=160, onset=100, bites="worst", catalogue=(45,),
    architecture="perceptron", ladder=(3, 10, 100), change="betas=(0.9, 0.95), and data of one scale",
)  # fmt: skip
def second_moment_lags(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """beta2 = 0.9999 still remembers small gradients when the data become larger at step 100: the updates leap."""
    torch.manual_seed(seed)
    inputs, targets = curves(seed)
    model = perceptron(8, 64, 64, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2, betas=(0.9, 0.9999 if fault else 0.95))  # at fault
    losses: list[float] = []
    for step in range(steps):
        batch = torch.randint(len(inputs), (256,))
        scale = fault.strength if fault.at(step) else 1.0
        prediction = model(inputs[batch]).squeeze(1)
        loss = functional.mse_loss(prediction * scale, targets[batch] * scale)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(functional.mse_loss(prediction, targets[batch]).item())
    before, after = losses[: fault.onset][-20:], losses[fault.onset :]
    worst = max(after, default=0.0) / statistics.mean(before)
    return {"loss": losses[-1], "worst": min(worst, 1000.0)}


@sick(
    "OPT008", "OPT004", "OPT007", "UPD001", steps=200, architecture="perceptron", catalogue=(46,),
    ladder=(0.99, 0.999, 0.9999), change="a momentum of 0.9",
)  # fmt: skip
def momentum_too_high(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """SGD with a momentum of 0.999: the weights swing past the minimum for hundreds of steps."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = perceptron(64, 64, 64, 32, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=fault.strength if fault else 0.9)  # at fault
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}
