"""Small language models as their fashions went: a config, a builder and one loop that all of them share."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program

LETTERS = 24


def manuscript(length: int, seed: int) -> Tensor:
    """A text from a random grammar in which each letter has three followers, depending on the two before it."""
    g = torch.Generator().manual_seed(1000 + seed)
    table = torch.randint(LETTERS, (LETTERS, 2, 3), generator=g)
    text = [0, 1]
    choices = (torch.rand(length, generator=g) ** 2 * 3).long().tolist()
    for choice in choices:
        text.append(int(table[text[-1], text[-2] % 2, choice]))
    return torch.tensor(text)


@dataclass
class Config:
    dim: int = 48
    heads: int = 4
    depth: int = 2
    context: int = 24
    window: int = 0  # 0: all the past
    query_norm: bool = False
    parallel: bool = False
    tied: bool = False


class RootMeanSquare(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain


def rotate(x: Tensor) -> Tensor:
    """Rotary positions on `[batch, head, time, dim]`."""
    half = x.shape[-1] // 2
    speed = 100 ** (-torch.arange(half) / half)
    angle = torch.arange(x.shape[-2])[:, None] * speed
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


class Block(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.c = c
        self.norm_1, self.norm_2 = RootMeanSquare(c.dim), RootMeanSquare(c.dim)
        self.qkv = nn.Linear(c.dim, 3 * c.dim, bias=False)
        self.out = nn.Linear(c.dim, c.dim, bias=False)
        self.gate_up = nn.Linear(c.dim, 4 * c.dim, bias=False)
        self.down = nn.Linear(2 * c.dim, c.dim, bias=False)
        t = torch.arange(c.context)
        mask = t[:, None] >= t[None]
        if c.window:
            mask &= t[:, None] - t[None] < c.window
        self.mask: Tensor
        self.register_buffer("mask", mask, persistent=False)

    def attend(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.c.heads, -1).permute(2, 0, 3, 1, 4)
        if self.c.query_norm:
            q, k = functional.normalize(q, dim=-1) * 4, functional.normalize(k, dim=-1) * 4
        h = functional.scaled_dot_product_attention(rotate(q), rotate(k), v, attn_mask=self.mask[:t, :t])
        return self.out(h.transpose(1, 2).reshape(b, t, d))

    def feed(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(functional.silu(gate) * up)

    def forward(self, x: Tensor) -> Tensor:
        if self.c.parallel:
            h = self.norm_1(x)
            return x + self.attend(h) + self.feed(h)
        x = x + self.attend(self.norm_1(x))
        return x + self.feed(self.norm_2(x))


class Scribe(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, c.dim)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.depth))
        self.norm = RootMeanSquare(c.dim)
        self.head = nn.Linear(c.dim, LETTERS, bias=False)
        nn.init.normal_(self.letters.weight, std=0.05)
        if c.tied:
            self.head.weight = self.letters.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.letters(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def write(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int, warm: int = 10, z_loss: float = 0.0,
    ahead: int = 1,
) -> dict[str, float]:  # fmt: skip
    text = manuscript(6000, seed)
    peak = [group["lr"] for group in optimizer.param_groups]
    loss = torch.zeros(())
    for step in range(steps):
        share = min(1.0, (step + 1) / warm) * (0.55 + 0.45 * math.cos(math.pi * step / max(steps, 1)))
        for group, rate in zip(optimizer.param_groups, peak):
            group["lr"] = rate * share
        start = torch.randint(len(text) - 26, (16,))
        rows = text[start[:, None] + torch.arange(24 + ahead)]
        logits = model(rows[:, :24])
        loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, ahead : 24 + ahead].flatten())
        if z_loss:
            loss = loss + z_loss * logits.logsumexp(-1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=200)
def scribe_of_today(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Rotary positions, gated feed-forward, no biases, AdamW with the usual betas, and a z-loss."""
    torch.manual_seed(seed)
    model = Scribe(Config())
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.1)
    return write(model, optimizer, steps, seed, z_loss=1e-4)


@program(steps=180, adversarial="a weight that two layers share has twice the gradient of its siblings")
def scribe_tied_and_narrow(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A tied table, parallel blocks, a window of six letters, and Adafactor without momentum."""
    torch.manual_seed(seed)
    model = Scribe(Config(tied=True, parallel=True, window=6))
    optimizer = torch.optim.Adafactor(model.parameters(), lr=0.02)
    return write(model, optimizer, steps, seed)


@program(steps=180, adversarial="attention logits of sixteen at the first step are too large")
def scribe_normed_queries(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Queries and keys of fixed length, Muon for the matrices of the blocks and AdamW for the rest."""
    torch.manual_seed(seed)
    model = Scribe(Config(query_norm=True))
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    inside = {id(p) for p in matrices}
    muon = torch.optim.Muon(matrices, lr=0.01, weight_decay=0.01)
    adam = torch.optim.AdamW([p for p in model.parameters() if id(p) not in inside], lr=4e-3)
    text = manuscript(6000, seed)
    loss = torch.zeros(())
    for _ in range(steps):
        start = torch.randint(len(text) - 26, (16,))
        rows = text[start[:, None] + torch.arange(25)]
        loss = functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        for optimizer in (muon, adam):
            optimizer.step()
            optimizer.zero_grad()
    return {"loss": loss.item()}


@program(steps=200, adversarial="a gate that begins almost closed gives no gradient")
def scribe_linear_recurrence(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A diagonal linear recurrence with input-dependent forgetting instead of attention."""
    torch.manual_seed(seed)

    class Recurrence(nn.Module):
        def __init__(self, dim: int) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(dim)
            self.into = nn.Linear(dim, 2 * dim)
            self.forget = nn.Linear(dim, dim)
            self.out = nn.Linear(dim, dim)
            nn.init.constant_(self.forget.bias, -2.0)

        def forward(self, x: Tensor) -> Tensor:
            h = self.norm(x)
            value, gate = self.into(h).chunk(2, -1)
            keep = torch.sigmoid(self.forget(h))
            state, states = torch.zeros_like(x[:, 0]), []
            for t in range(x.shape[1]):
                state = keep[:, t] * state + (1 - keep[:, t]) * value[:, t]
                states.append(state)
            return x + self.out(torch.stack(states, 1) * functional.gelu(gate))

    model = nn.Sequential(
        nn.Embedding(LETTERS, 40), Recurrence(40), Recurrence(40), nn.LayerNorm(40), nn.Linear(40, LETTERS)
    )
    return write(model, torch.optim.Adam(model.parameters(), lr=6e-3), steps, seed, warm=5)


@program(steps=200, adversarial="most targets are ignored, so most outputs have no gradient")
def scribe_fills_gaps(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A masked model that sees both sides, with positions by convolution, is asked for one letter in six."""
    torch.manual_seed(seed)
    text = manuscript(6000, seed)
    layer = nn.TransformerEncoderLayer(40, 4, 80, dropout=0.1, activation="gelu", batch_first=True, norm_first=True)
    model = nn.ModuleDict(
        {
            "letters": nn.Embedding(LETTERS + 1, 40),
            "nearby": nn.Conv1d(40, 40, 5, padding=2),
            "encoder": nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            "head": nn.Sequential(nn.Linear(40, 40), nn.GELU(), nn.LayerNorm(40), nn.Linear(40, LETTERS)),
        }
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=max(steps, 4), pct_start=0.2)
    loss = torch.zeros(())
    for _ in range(steps):
        start = torch.randint(len(text) - 26, (24,))
        rows = text[start[:, None] + torch.arange(24)]
        hidden = torch.rand(rows.shape) < 0.17
        seen = model["letters"](rows.masked_fill(hidden, LETTERS))
        seen = seen + functional.gelu(model["nearby"](seen.transpose(1, 2)).transpose(1, 2))
        logits = model["head"](model["encoder"](seen))
        loss = functional.cross_entropy(logits.flatten(0, 1), rows.masked_fill(~hidden, -100).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return {"loss": loss.item()}


@program(steps=180, adversarial="a loss near the logarithm of the followers cannot fall and so is a plateau")
def scribe_at_the_floor(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A bag of the last two letters learns the grammar within fifty steps and rests at its entropy ever after."""
    torch.manual_seed(seed)
    text = manuscript(8000, seed)
    table = nn.Embedding(LETTERS * 2, 32)
    head = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, LETTERS))
    optimizer = torch.optim.Adam([*table.parameters(), *head.parameters()], lr=1e-2)
    loss = torch.zeros(())
    for _ in range(steps):
        at = torch.randint(1, len(text) - 1, (256,))
        pair = text[at] * 2 + text[at - 1] % 2
        loss = functional.cross_entropy(head(table(pair)), text[at + 1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}
