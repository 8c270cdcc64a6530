"""Gradients that never arrive, are never cleared, vanish or explode."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, sentences, share_correct
from undertow.demos.models import perceptron


@sick(
    "GRD007", steps=150, change="optimizer.zero_grad() before backward", architecture="perceptron", catalogue=(16,),
    onsets=(50,),
)  # fmt: skip
def missing_zero_grad(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Nobody calls `zero_grad()`: every step uses the sum of all gradients so far."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for step in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        if not fault.at(step):
            optimizer.zero_grad()  # at fault
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.grow = nn.Linear(width, 4 * width)
        self.shrink = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        normal = self.norm1(x)
        x = x + self.attention(normal, normal, normal, attn_mask=mask, need_weights=False)[0]
        return x + self.shrink(functional.gelu(self.grow(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, forget_detach: bool, vocabulary: int = 32, length: int = 23, width: int = 64) -> None:
        super().__init__()
        self.forget_detach = forget_detach
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(4))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places[: tokens.shape[1]]
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number == 2 and self.forget_detach:
                x = x.detach()  # left over from looking at the features  # at fault
        return self.head(self.norm(x))


@sick(
    "GRD003",
    steps=80,
    layers=("tokens", "places", "blocks.0", "blocks.1", "blocks.2"),
    change="remove the .detach() after block 2",
    architecture="transformer",
    catalogue=(18,),
)
def forgotten_detach(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A transformer whose third block ends in a forgotten `.detach()`; the loss still falls."""
    torch.manual_seed(seed)
    tokens = sentences(seed, count=512, back=2)
    model = Transformer(forget_detach=fault.on)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = tokens[torch.randint(len(tokens), (32,))]
        loss = functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    test = sentences(seed + 1000, back=2)
    return {"loss": loss.item(), "accuracy": share_correct(model, test[:, :-1], test[:, 1:])}


@sick(
    "GRD001", "WGT003", steps=150, layers=tuple(str(number) for number in range(18)), architecture="deep perceptron",
    catalogue=(1,), ladder=(7, 9, 12), change="ReLU with He initialisation, or batch norm",
)  # fmt: skip
def deep_sigmoid(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Nine sigmoid layers: each passes back a fraction of the gradient, and the first gets next to nothing."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    widths = [64, *[48] * int(fault.strength), 10]
    model = perceptron(*widths, activation=nn.Sigmoid if fault else nn.ReLU)  # at fault
    if not fault:
        for layer in model:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


class Reader(nn.Module):
    """Reads a sequence of numbers and says something about it at the end."""

    def __init__(self, width: int, nonlinearity: str, outputs: int) -> None:
        super().__init__()
        self.rnn = nn.RNN(1, width, nonlinearity=nonlinearity, batch_first=True)
        self.head = nn.Linear(width, outputs)

    def forward(self, sequence: Tensor) -> Tensor:
        return self.head(self.rnn(sequence.unsqueeze(-1))[0][:, -1])


def start_recurrence(rnn: nn.RNN, radius: float) -> None:
    weight = rnn.weight_hh_l0
    assert isinstance(weight, nn.Parameter)
    nn.init.orthogonal_(weight, gain=radius)  # at fault


@sick(
    "GRD002", "WGT003", "NUM001", "NUM002", steps=160, layers=("rnn",), bites="error", architecture="recurrent",
    catalogue=(8,), ladder=(2, 4, 10), change="nn.init.orthogonal_(rnn.weight_hh_l0), and clip",
)  # fmt: skip
def recurrence_explodes(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A ReLU network over 32 steps of time whose recurrent weight is four times too large."""
    torch.manual_seed(seed)
    sequences = torch.rand(512, 32)
    targets = sequences.mean(1, keepdim=True) * 4 - 2
    model = Reader(32, "relu", 1)
    start_recurrence(model.rnn, fault.strength if fault else 1.0)  # at fault
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(sequences), (32,))
        loss = functional.mse_loss(model(sequences[batch]), targets[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        error = functional.mse_loss(model(sequences), targets) / targets.var()
    return {"loss": loss.item(), "error": error.nan_to_num(1e3).clamp_max(1e3).item()}


@sick(
    "GRD004", steps=150, layers=("2",), bites="moved", silent=True, change="a mask of ones, or no hook at all",
    architecture="perceptron", catalogue=(35,), onsets=(50,),
)  # fmt: skip
def masked_gradient(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A pruning hook multiplies the gradient of layer 2 by a mask that is zero everywhere."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    pruned = model[2].weight
    assert isinstance(pruned, nn.Parameter)
    start = pruned.detach().clone()
    mask = torch.ones_like(pruned)
    pruned.register_hook(lambda gradient: gradient * mask)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for step in range(steps):
        if fault.at(step):
            mask.zero_()  # at fault
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    moved = ((pruned.detach() - start).norm() / start.norm()).item()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000)), "moved": moved}
