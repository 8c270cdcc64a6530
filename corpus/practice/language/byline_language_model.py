"""A tiny decoder in the fashion of today (RMS norm, rotary positions, gated feed-forward, tied table) reads bylines."""

from __future__ import annotations

import math
import random

import torch
from torch import Tensor, nn

from corpus.case import program

WHO = ["anna", "bert", "carla", "dirk", "eve", "fritz"]
WHERE = ["oslo", "rome", "lima", "cairo", "delhi"]
WHAT = ["storm", "vote", "match", "strike", "fire", "trial"]
ALPHABET = "\n .,:" + "abcdefghijklmnopqrstuvwxyz"
CONTEXT = 40


def headlines(n: int, seed: int) -> list[list[int]]:
    """The reporter decides the city, city and reporter decide the event; the rest is spelling."""
    rng = random.Random(seed)
    lines = []
    for _ in range(n):
        who = rng.randrange(6)
        where = (who * 2 + rng.randrange(2)) % 5
        line = f"by {WHO[who]}, {WHERE[where]}: {WHAT[(who + where) % 6]} in {WHERE[where]}.\n"
        lines.append([ALPHABET.index(c) for c in line])
    return lines


def stream(seed: int) -> Tensor:
    return torch.tensor([token for line in headlines(600, seed) for token in line])


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


def rotate(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * 100.0 ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


class Layer(nn.Module):
    def __init__(self, dim: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.attn_norm, self.ffn_norm = RMSNorm(dim), RMSNorm(dim)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.w1, self.w3 = nn.Linear(dim, 2 * dim, bias=False), nn.Linear(dim, 2 * dim, bias=False)
        self.w2 = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        h = self.attn_norm(x)
        q, k, v = (w(h).view(b, t, self.heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        h = nn.functional.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        x = x + self.wo(h.transpose(1, 2).reshape(b, t, d))
        h = self.ffn_norm(x)
        return x + self.w2(nn.functional.silu(self.w1(h)) * self.w3(h))


class Decoder(nn.Module):
    def __init__(self, dim: int = 48, depth: int = 2, tie: bool = True) -> None:
        super().__init__()
        self.tok = nn.Embedding(len(ALPHABET), dim)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(depth))
        self.norm = RMSNorm(dim)
        self.output = nn.Linear(dim, len(ALPHABET), bias=False)
        nn.init.normal_(self.tok.weight, std=0.05)
        if tie:
            self.output.weight = self.tok.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.tok(x)
        for layer in self.layers:
            h = layer(h)
        return self.output(self.norm(h))


def windows(data: Tensor, n: int) -> tuple[Tensor, Tensor]:
    start = torch.randint(len(data) - CONTEXT - 1, (n, 1))
    rows = data[start + torch.arange(CONTEXT + 1)]
    return rows[:, :-1], rows[:, 1:]


def nats(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def held_out(model: nn.Module, seed: int) -> float:
    torch.manual_seed(seed)
    return min(nats(model, *windows(stream(4000 + seed), 64)).item(), 1e6)


@program(steps=140)
def byline(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Warm-up and cosine, AdamW with decay on matrices only, clip at one."""
    torch.manual_seed(seed)
    data = stream(seed)
    model = Decoder()
    if fault == "byline_table_copied":
        model.output.weight = nn.Parameter(model.tok.weight.detach().clone())
    matrices = [p for p in model.parameters() if p.dim() > 1]
    gains = [p for p in model.parameters() if p.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": gains, "weight_decay": 40.0 if fault == "byline_decay_on_gains" else 0.0},
    ]
    peak = 0.03 if fault == "byline_cold_start" else 6e-3
    optimizer = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95))
    if fault == "byline_tied_again_too_late":  # after loading the weights, and a copy at that
        model.output.weight = nn.Parameter(model.tok.weight.detach().clone())
    warm = 0 if fault == "byline_cold_start" else 20
    model.train()
    for step in range(steps):
        share = (step + 1) / warm if step < warm else 0.55 + 0.45 * math.cos(math.pi * step / steps)
        for group in optimizer.param_groups:
            group["lr"] = peak * share
        loss = nats(model, *windows(data, 16))
        optimizer.zero_grad()
        loss.backward()
        if fault == "byline_first_layer_zeroed" and step >= 10:
            for p in model.layers[0].parameters():  # "only the last layer from here on", but the optimizer goes on
                p.grad = torch.zeros_like(p)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    apart = (model.output.weight - model.tok.weight).norm() / model.tok.weight.norm()
    return {"loss": held_out(model, seed), "apart": apart.item()}


byline.mistake(
    "byline_cold_start",
    "OPT007", "UPD001", "OPT003", "GRD006", "OPT001", "OPT005", "OPT002",
    summary="No warm-up, and the peak rate of a far smaller model from the first step.",
    change="warm up over twenty steps to 6e-3",
)  # fmt: skip
byline.mistake(
    "byline_table_copied",
    "WGT006",
    summary="The tied output is a copy of the table, and both go their own way.",
    change="output.weight = tok.weight",
    layers=("output", "tok"),
    bites="apart",
    silent=True,
)
byline.mistake(
    "byline_tied_again_too_late",
    "UPD003",
    summary="After the optimizer was built the output gets a copy of the table that no optimizer knows.",
    change="tie by reference, before the optimizer",
    layers=("output",),
    bites="apart",
    silent=True,
)
byline.mistake(
    "byline_decay_on_gains",
    "OPT008", "WGT005",
    summary="The groups are mixed up: a decay of forty falls on the gains of the norms.",
    change="no decay on gains",
    layers=("norm", "layers.0.attn_norm", "layers.0.ffn_norm", "layers.1.attn_norm", "layers.1.ffn_norm"),
)  # fmt: skip
byline.mistake(
    "byline_first_layer_zeroed",
    "GRD004",
    summary="From step ten the gradients of the first layer are overwritten with zeros, meant for a later stage.",
    change="remove the zeroing",
    layers=("layers.0",),
    onset=10,
)


@program(steps=140, adversarial="the first updates are orthogonal matrices, as large as the weights allow")
def byline_by_muon(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Muon for the matrices of the layers, AdamW for table and gains."""
    torch.manual_seed(seed)
    data = stream(seed)
    model = Decoder()
    inner = [p for p in model.layers.parameters() if p.dim() == 2]
    known = {id(p) for p in inner}
    first = torch.optim.Muon(inner, lr=0.02, weight_decay=0.0)
    second = torch.optim.AdamW([p for p in model.parameters() if id(p) not in known], lr=4e-3, weight_decay=0.0)
    for _ in range(steps):
        loss = nats(model, *windows(data, 16))
        model.zero_grad()
        loss.backward()
        first.step()
        second.step()
    return {"loss": held_out(model, seed)}


@program(steps=140, adversarial="output and input table begin as copies and drift apart")
def byline_untied_on_purpose(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The output starts as the table and may leave it; its rate is a fifth of the others'."""
    torch.manual_seed(seed)
    data = stream(seed)
    model = Decoder(tie=False)
    with torch.no_grad():
        model.output.weight.copy_(model.tok.weight)
    slow = {"params": model.output.parameters(), "lr": 1e-3}
    rest = {"params": [p for name, p in model.named_parameters() if not name.startswith("output")]}
    optimizer = torch.optim.AdamW([rest, slow], lr=5e-3, weight_decay=0.01)
    for _ in range(steps):
        loss = nats(model, *windows(data, 16))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": held_out(model, seed)}


@program(steps=140, adversarial="the loss jumps, and the rate jumps, in the middle of the run")
def byline_longer_lines(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Short windows first, whole bylines later; at the change the rate is warmed up again."""
    torch.manual_seed(seed)
    data = stream(seed)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
    half = steps // 2
    for step in range(steps):
        since = step if step < half else step - half
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * min(1.0, (since + 1) / 15)
        x, y = windows(data, 16)
        length = 10 if step < half else CONTEXT
        loss = nats(model, x[:, :length], y[:, :length])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": held_out(model, seed)}
