"""Recurrent networks and transformers."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy
from undertow.demos.data import sentences


class Block(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)  # its bias has no gradient but rounding: softmax does not see it
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.grow = nn.Linear(width, 4 * width)
        self.shrink = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        normal = self.norm1(x)
        query, key, value = (
            project(normal).unflatten(-1, (2, -1)).transpose(1, 2) for project in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.out(attended.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.shrink(functional.gelu(self.grow(self.norm2(x)))))


class LanguageModel(nn.Module):
    def __init__(self, width: int = 32, depth: int = 2, dropout: float = 0.1, tied: bool = True) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32, width)
        self.places = nn.Embedding(24, width)
        self.blocks = nn.Sequential(*[Block(width, dropout) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 32, bias=False)
        if tied:
            nn.init.normal_(self.tokens.weight, std=0.1)
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def _next_token_loss(model: nn.Module, batch: Tensor) -> Tensor:
    return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


@healthy(steps=120, architecture="transformer", adversarial="a key bias whose gradient is zero is dead")
def gpt_tied(steps: int, seed: int) -> dict[str, float]:
    """A GPT with tied embedding, dropout, warm-up, cosine decay and clipping."""
    torch.manual_seed(seed)
    tokens = sentences(seed)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 10, 0.55 + 0.45 * math.cos(math.pi * step / steps))
    )
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = _next_token_loss(model, tokens[torch.randint(len(tokens), (16,))])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return {"loss": loss.item()}


@healthy(steps=80, architecture="transformer")
def gpt_bfloat16(steps: int, seed: int) -> dict[str, float]:
    """The same under bfloat16 autocast, with an untied head and decay for matrices only."""
    torch.manual_seed(seed)
    tokens = sentences(seed, back=2)
    model = LanguageModel(dropout=0.0, tied=False)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = _next_token_loss(model, tokens[torch.randint(len(tokens), (16,))])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


class RecurrentReader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(33, 24, padding_idx=32)
        self.recurrent = nn.LSTM(24, 48, num_layers=2, batch_first=True)
        self.head = nn.Linear(48, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.recurrent(self.embedding(tokens))[0])


@healthy(steps=80, architecture="recurrent", adversarial="an embedding row that never gets a gradient is dead")
def lstm_clipped(steps: int, seed: int) -> dict[str, float]:
    """A two-layer LSTM with clipping and a padding row that never gets a gradient."""
    torch.manual_seed(seed)
    tokens = sentences(seed)
    model = RecurrentReader()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = _next_token_loss(model, tokens[torch.randint(len(tokens), (16,))])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return {"loss": loss.item()}


@healthy(steps=150, architecture="embedding", adversarial="mostly zero gradients are dead")
def sparse_embedding(steps: int, seed: int) -> dict[str, float]:
    """A table of 2,000 rows with sparse gradients under SparseAdam; the rest under Adam."""
    torch.manual_seed(seed)
    table = nn.Embedding(2000, 16, sparse=True)
    head = nn.Linear(16, 2)
    sparse = torch.optim.SparseAdam(table.parameters(), lr=0.05)
    dense = torch.optim.Adam(head.parameters(), lr=0.01)
    side = torch.randint(2, (2000,))
    loss = torch.tensor(0.0)
    for _ in range(steps):
        words = torch.randint(400, (64,))
        loss = functional.cross_entropy(head(table(words)), side[words])
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()
    return {"loss": loss.item()}
