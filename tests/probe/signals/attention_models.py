"""Attention written in several ways, and a step of training with it."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

BATCH, LENGTH, WIDTH, HEADS = 3, 7, 16, 2

PADDING = torch.tensor([7, 5, 4])


def hidden(mask: str) -> torch.Tensor:
    """(batch × 1 × length × length), True where attention must not go."""
    out = torch.zeros(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool)
    if mask == "causal":
        out |= torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    elif mask == "padding":
        out |= (torch.arange(LENGTH)[None, :] >= PADDING[:, None])[:, None, None, :]
    return out


class Attention(nn.Module):
    """Keeps its own book: the largest logit and the mean entropy, in float64."""

    def __init__(self, form: str, mask: str = "none", sharpness: float = 1.0) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.softmax = nn.Softmax(-1)
        self.form, self.mask, self.sharpness = form, mask, sharpness
        self.book: tuple[float, float] = (0.0, 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.view(BATCH, LENGTH, HEADS, -1).transpose(1, 2) for part in (self.sharpness * self.qkv(x)).chunk(3, -1)
        )
        self.note(q, k)
        out = getattr(self, self.form)(q, k, v, hidden(self.mask))
        return self.out(out.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))

    def note(self, q: torch.Tensor, k: torch.Tensor) -> None:
        logits = (q.detach().double() @ k.detach().double().transpose(-1, -2)) / math.sqrt(WIDTH // HEADS)
        mask = hidden(self.mask).expand(logits.shape)
        shares = logits.masked_fill(mask, -math.inf).softmax(-1)
        entropy = -(shares * shares.clamp_min(1e-300).log()).sum(-1)
        count = (~mask).sum(-1)
        share = (entropy / count.clamp_min(2).double().log())[count > 1].mean()
        self.book = (float(logits.abs().masked_fill(mask, 0).max()), float(share))

    def built_in(self, q, k, v, mask):
        if self.mask == "causal":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=~mask if self.mask != "none" else None)

    def added_mask(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.zeros(mask.shape).masked_fill(mask, -math.inf))

    def masked_fill(self, q, k, v, mask):
        logits = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        return logits.masked_fill(mask, -math.inf).softmax(-1) @ v

    def added_by_hand(self, q, k, v, mask):
        logits = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        return self.softmax(logits + torch.zeros(mask.shape).masked_fill(mask, -math.inf)) @ v

    def dropped(self, q, k, v, mask):
        logits = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        return F.dropout(logits.masked_fill(mask, -math.inf).softmax(-1), 0.1) @ v

    def by_einsum(self, q, k, v, mask):
        logits = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
        return torch.einsum("bhqk,bhkd->bhqd", logits.masked_fill(mask, -math.inf).softmax(-1), v)


class Model(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.embed, self.attention = nn.Embedding(11, WIDTH), attention
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 11)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        return self.head(x + self.attention(self.norm(x)))


def one_step(watch, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watch(model, activations=True) as w:
        output = model(inputs)
        F.cross_entropy(output.reshape(-1, output.shape[-1]), targets.reshape(-1)).backward()
        optimizer.step()
    return w.run


def tokens() -> torch.Tensor:
    return torch.randint(0, 11, (BATCH, LENGTH), generator=torch.Generator().manual_seed(3))


FORMS = ("built_in", "added_mask", "masked_fill", "added_by_hand", "dropped", "by_einsum")
