"""OPT007: a learning rate or schedule that cannot work."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, sentences, share_correct
from undertow.demos.models import Decoder, next_token_loss, perceptron, share_of_next_tokens


@sick(
    "OPT007", "UPD001", steps=150, architecture="perceptron", catalogue=(7,), ladder=(1.0, 3.0, 10.0),
    change="a learning rate of 0.05",
)  # fmt: skip
def units_killed_by_the_rate(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A learning rate of 3 throws every ReLU unit into the region where it is dead."""
    torch.manual_seed(seed)
    loader = DataLoader(TensorDataset(*glyphs(seed)), batch_size=64, shuffle=True)
    model = perceptron(64, 64, 64, 32, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=fault.strength if fault else 0.05, momentum=0.9)  # at fault
    criterion = nn.CrossEntropyLoss()
    loss = torch.tensor(0.0)
    for _ in range(steps // len(loader) + 1):
        for pictures, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(pictures), labels)
            loss.backward()
            optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


@sick(
    "OPT007", "UPD001", steps=100, architecture="transformer", catalogue=(38,), ladder=(0.2, 0.3, 1.0), onsets=(40,),
    change="a learning rate of 3e-3",
)  # fmt: skip
def rate_too_high_transformer(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A GPT under Adam with a learning rate of 0.3."""
    torch.manual_seed(seed)
    tokens = sentences(seed)
    model = Decoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for step in range(steps):
        if fault.at(step):
            for group in optimizer.param_groups:
                group["lr"] = fault.strength  # at fault
        loss = next_token_loss(model, tokens[torch.randint(len(tokens), (16,))])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_of_next_tokens(model, sentences(seed + 1000))}


@sick(
    "OPT007", "UPD001", steps=150, bites="error", architecture="autoencoder", catalogue=(38,),
    ladder=(0.3, 1.0, 10.0), change="a learning rate of 3e-3",
)  # fmt: skip
def rate_too_high_autoencoder(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """An autoencoder under Adam with a learning rate of 1."""
    torch.manual_seed(seed)
    pictures, _ = glyphs(seed)
    model = nn.ModuleDict({"encoder": perceptron(64, 48, 12), "decoder": perceptron(12, 48, 64)})
    optimizer = torch.optim.Adam(model.parameters(), lr=fault.strength if fault else 3e-3)  # at fault
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = pictures[torch.randint(len(pictures), (64,))]
        loss = functional.mse_loss(model["decoder"](model["encoder"](batch)), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        error = functional.mse_loss(model["decoder"](model["encoder"](pictures)), pictures) / pictures.var()
    return {"loss": loss.item(), "error": min(error.item(), 100.0)}


@sick(
    "OPT007", "UPD001", "OPT003", steps=120, architecture="transformer", catalogue=(40,), ladder=(0.065, 0.08, 0.15),
    change="a warm-up of 40 steps to the same rate",
)  # fmt: skip
def no_warm_up(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A GPT under AdamW starts cold at its peak learning rate, which only a warm-up would make bearable."""
    torch.manual_seed(seed)
    tokens = sentences(seed, back=2)
    model = Decoder(depth=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=fault.strength, betas=(0.9, 0.98))  # at fault
    warm_up = 1 if fault else 40  # at fault
    schedule = lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warm_up))  # at fault
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = next_token_loss(model, tokens[torch.randint(len(tokens), (16,))])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return {"loss": loss.item(), "accuracy": share_of_next_tokens(model, sentences(seed + 1000, back=2))}


@sick(
    "OPT007", "UPD002", steps=150, architecture="recurrent", catalogue=(37,), change="gamma per epoch: 0.9 ** (1 / 16)",
)  # fmt: skip
def decay_per_batch(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """An exponential decay of 0.8, set for epochs, is applied to every batch of a GRU."""
    torch.manual_seed(seed)
    tokens = sentences(seed)
    model = nn.ModuleDict(
        {"embedding": nn.Embedding(32, 24), "recurrent": nn.GRU(24, 48, batch_first=True), "head": nn.Linear(48, 32)}
    )
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    schedule = lr_scheduler.ExponentialLR(optimizer, gamma=0.8)  # at fault
    loss = torch.tensor(0.0)
    for step in range(steps):
        batch = tokens[torch.randint(len(tokens), (16,))]
        hidden, _ = model["recurrent"](model["embedding"](batch[:, :-1]))
        loss = functional.cross_entropy(model["head"](hidden).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if fault or step % 50 == 49:
            schedule.step()  # at fault
    test = sentences(seed + 1000)
    with torch.no_grad():
        answers = model["head"](model["recurrent"](model["embedding"](test[:, :-1]))[0]).argmax(-1)
    return {"loss": loss.item(), "accuracy": (answers == test[:, 1:]).float().mean().item()}


@sick(
    "OPT007", "UPD001", "GRD005", "OPT001", "OPT004", steps=120, bites="error", architecture="linear",
    catalogue=(38,), ladder=(1.02, 1.1, 2.0), change="a rate below 2 / the largest curvature",
)  # fmt: skip
def beyond_stability(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Plain gradient descent on a linear model, a tenth beyond the stable rate: each step overshoots the last."""
    torch.manual_seed(seed)
    inputs = torch.randn(256, 8) * torch.logspace(0, 0.5, 8)
    targets = inputs @ torch.randn(8, 1) + 0.1 * torch.randn(256, 1)
    curvature = 2 * torch.linalg.eigvalsh(inputs.T @ inputs / len(inputs)).max().item()
    model = nn.Linear(8, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0 / curvature)
    loss = torch.tensor(0.0)
    for step in range(steps):
        if fault.at(step):
            optimizer.param_groups[0]["lr"] = 2 * fault.strength / curvature  # at fault
        loss = functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "error": (loss / targets.var()).nan_to_num(1e6).clamp_max(1e6).item()}
