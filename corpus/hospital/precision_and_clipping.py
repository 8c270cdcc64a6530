"""NUM005 and GRD010: numbers too small or too large for their format, and gradients clipped to nothing."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import curves, glyphs, sentences, share_correct
from undertow.demos.models import Decoder, next_token_loss, perceptron, share_of_next_tokens


@sick(
    "NUM005", "GRD004", steps=100, architecture="convolutional", catalogue=(48,),
    change="torch.amp.GradScaler around backward and step",
)  # fmt: skip
def autocast_without_scaler(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """float16 autocast without a loss scaler, on a loss that is averaged over many small terms."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=5e4, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, enabled=not fault)  # at fault
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(pictures[batch])
        loss = functional.cross_entropy(logits.float(), labels[batch]) * 1e-6  # one of many terms
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return {"loss": 1e6 * loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


class HalfPrecisionMiddle(nn.Module):
    """The large layer in the middle computes in float16, to save memory."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.first = nn.Linear(64, 64)
        self.middle = nn.Linear(64, 64)
        self.last = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.first(x)) * self.scale
        weight, bias = self.middle.weight.half(), self.middle.bias.half()
        x = functional.linear(x.half(), weight, bias).float() / self.scale  # at fault
        return self.last(functional.relu(x))


@sick(
    "NUM005", "NUM004", "NUM002", steps=60, layers=("middle",), architecture="perceptron", catalogue=(49,),
    ladder=(1e5, 1e6, 1e8), change="compute the middle layer in bfloat16, or scale before it",
)  # fmt: skip
def half_precision_overflow(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """One layer computes in float16 on values beyond 65,504: its output is infinite."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = HalfPrecisionMiddle(fault.strength if fault else 1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


@sick(
    "GRD010", "UPD002", "OPT007", steps=150, architecture="convolutional", catalogue=(34,), ladder=(1e-2, 1e-3, 1e-5),
    onsets=(50,), change="clip at 1.0",
)  # fmt: skip
def clipped_to_nothing(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """The bound of `clip_grad_norm_` is a thousandth of the usual: SGD creeps."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    loss = torch.tensor(0.0)
    for step in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), fault.strength if fault.at(step) else 1.0)  # at fault
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


@sick(
    "GRD010", "UPD002", "OPT007", steps=150, bites="error", architecture="perceptron", catalogue=(33,),
    change="scaler.unscale_(optimizer) before clipping",
)  # fmt: skip
def clipped_before_unscaling(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Gradients are clipped while they still carry the loss scale of 65,536, then divided by it."""
    torch.manual_seed(seed)
    inputs, targets = curves(seed)
    model = perceptron(8, 48, 48, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(inputs), (64,))
        loss = functional.mse_loss(model(inputs[batch]).squeeze(1), targets[batch])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if not fault:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # at fault
        scaler.step(optimizer)
        scaler.update()
    with torch.no_grad():
        error = functional.mse_loss(model(inputs).squeeze(1), targets) / targets.var()
    return {"loss": loss.item(), "error": error.item()}


@sick(
    "GRD010", "UPD002", "OPT007", steps=120, architecture="transformer", catalogue=(34,),
    change="clip at 1.0, or clip the norm and not the values",
)  # fmt: skip
def values_clipped_to_nothing(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """`clip_grad_value_` at one in a million on a GPT under SGD with Nesterov momentum."""
    torch.manual_seed(seed)
    tokens = sentences(seed)
    model = Decoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, nesterov=True)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = next_token_loss(model, tokens[torch.randint(len(tokens), (16,))])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 1e-6 if fault else 1.0)  # at fault
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_of_next_tokens(model, sentences(seed + 1000))}
