"""GRD003: the graph is cut, and trainable layers before the cut get no gradient."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.faults.data import glyphs, sentences, share_correct
from undertow.faults.fault import Fault
from undertow.faults.training import sick


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
                x = x.detach()  # left over from looking at the features
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


class EncoderAndHead(nn.Module):
    def __init__(self, encoder_learns: bool) -> None:
        super().__init__()
        self.encoder_learns = encoder_learns
        self.encoder = nn.Sequential(nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 6), nn.Tanh())
        self.head = nn.Linear(6, 10)

    def forward(self, pictures: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.encoder_learns and torch.is_grad_enabled()):
            features = self.encoder(pictures)
        return self.head(features)


@sick(
    "GRD003", steps=200, layers=("encoder",), change="leave the no_grad block around the encoder out",
    architecture="perceptron", catalogue=(18,),
)  # fmt: skip
def encoder_under_no_grad(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """The encoder runs under `no_grad`, yet its parameters are in the optimizer."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = EncoderAndHead(encoder_learns=not fault)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}
