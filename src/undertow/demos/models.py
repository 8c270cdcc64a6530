"""The few models that several trainings share."""

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional


def perceptron(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between them; the layers have even numbers as names."""
    layers: list[nn.Module] = []
    for number, (width, following) in enumerate(itertools.pairwise(widths)):
        layers += [nn.Linear(width, following)] if number == 0 else [activation(), nn.Linear(width, following)]
    return nn.Sequential(*layers)


class CausalAttention(nn.Module):
    """Attention written out, as in a tutorial: one projection for query, key and value."""

    def __init__(self, width: int, heads: int, scale: float = 1.0) -> None:
        super().__init__()
        self.heads, self.scale = heads, scale
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scores = query @ key.transpose(-2, -1) * (self.scale / query.shape[-1] ** 0.5)
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        attended = scores.masked_fill(future, float("-inf")).softmax(-1) @ value
        return self.proj(attended.transpose(1, 2).flatten(2))


class DecoderBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.att = CausalAttention(width, heads)
        self.ln2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.att(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Decoder(nn.Module):
    """A pre-norm GPT over sequences of at most 24 tokens out of 32."""

    def __init__(self, depth: int = 2, width: int = 32, heads: int = 4, vocabulary: int = 32) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(24, width)
        self.blocks = nn.ModuleList(DecoderBlock(width, heads) for _ in range(depth))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


def next_token_loss(model: nn.Module, batch: Tensor) -> Tensor:
    return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def share_of_next_tokens(model: nn.Module, tokens: Tensor) -> float:
    """Accuracy on the next token."""
    with torch.no_grad():
        return (model(tokens[:, :-1]).argmax(-1) == tokens[:, 1:]).float().mean().item()
