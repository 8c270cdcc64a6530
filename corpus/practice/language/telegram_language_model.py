"""Telegrams sold by the word: small decoder-only language models over a terse, regular language."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
from torch import Tensor
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint

from corpus.case import program

WORDS, LENGTH, WIDTH = 60, 25, 48
STOP = 0  # the commonest word of every telegram


class Office:
    """Each word has three likely successors, chosen by the word before it too; STOP comes every few words."""

    def __init__(self, seed: int, words: int = WORDS) -> None:
        self.words = words
        g = torch.Generator().manual_seed(seed)
        self.after = torch.randint(1, words, (words, 2, 3), generator=g)
        self.after[:, :, 0] = torch.where(torch.rand(words, 2, generator=g) < 0.4, STOP, self.after[:, :, 0])
        self.g = torch.Generator().manual_seed(seed + 1)

    def batch(self, size: int, length: int = LENGTH) -> Tensor:
        words = torch.randint(self.words, (size, 2), generator=self.g)
        out = [words[:, 0], words[:, 1]]
        for _ in range(length - 2):
            luck = torch.multinomial(torch.tensor([0.8, 0.15, 0.05]).expand(size, 3), 1, generator=self.g)[:, 0]
            out.append(self.after[out[-1], out[-2] % 2, luck])
        return torch.stack(out, 1)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, drop: float) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))
        self.drop = nn.Dropout(drop)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        b, t, w = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        y = fn.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, w)
        x = x + self.drop(self.proj(y))
        return x + self.drop(self.mlp(self.n2(x)))


class Clerk(nn.Module):
    def __init__(self, words: int = WORDS, drop: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(words, WIDTH)
        self.places = nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList([Block(WIDTH, 4, drop) for _ in range(2)])
        self.norm = nn.LayerNorm(WIDTH)
        with torch.no_grad():
            self.words.weight.normal_(0, 0.02)
            self.places.weight.normal_(0, 0.02)
        self.recompute = False

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text) + self.places.weight[: text.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.norm(x) @ self.words.weight.T


def next_word_loss(net: nn.Module, text: Tensor) -> Tensor:
    return fn.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def tail(history: list[float]) -> float:
    mean = sum(history[-10:]) / 10
    return min(mean, 1e6) if math.isfinite(mean) else 1e6


@program(steps=150)
def wire_clerk(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two pre-norm blocks, the table of words tied to the output, AdamW, warm-up, clipping at one."""
    torch.manual_seed(seed)
    office = Office(seed)
    net = Clerk()
    if fault == "wire_first_block_wide":
        with torch.no_grad():
            for p in net.blocks[0].parameters():
                if p.dim() > 1:
                    p *= 40
    adamw = torch.optim.AdamW(net.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.05)
    warm = torch.optim.lr_scheduler.LambdaLR(adamw, lambda step: min(1.0, (step + 1) / 15))
    history: list[float] = []
    for _ in range(steps):
        loss = next_word_loss(net, office.batch(16))
        adamw.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        adamw.step()
        warm.step()
        history.append(loss.item())
    return {"loss": tail(history)}


wire_clerk.mistake(
    "wire_first_block_wide",
    "WGT003", "ACT004", "GRD001", "GRD002", "WGT004",
    summary="The first block's matrices come from a file in another scale, forty times too wide.",
    change="draw the first block again",
    layers=("blocks.0",),
)  # fmt: skip


class Reader(nn.Module):
    """Is this telegram urgent? A bag of learnt vectors and a gated unit."""

    def __init__(self, padding: int | None) -> None:
        super().__init__()
        self.vectors = nn.Embedding(WORDS, 24, padding_idx=padding)
        self.gru = nn.GRU(24, 32, batch_first=True)
        self.hidden = nn.Linear(32, 32)
        self.urgent = nn.Linear(32, 2)

    def forward(self, text: Tensor) -> Tensor:
        _, last = self.gru(self.vectors(text))
        return self.urgent(torch.relu(self.hidden(last[0])))


@program(steps=120, bites="stop_moved")
def wire_urgency(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Urgent telegrams have many STOPs: a GRU counts them, SGD with momentum, gradients clipped."""
    torch.manual_seed(seed)
    office = Office(seed)
    net = Reader(padding=STOP if fault == "wire_stop_is_padding" else None)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    start = net.vectors.weight[STOP].detach().clone()
    history: list[float] = []
    for _ in range(steps):
        text = office.batch(48, 18)
        count = (text == STOP).sum(1)
        loss = fn.cross_entropy(net(text), (count > 3).long())
        sgd.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 2.0)
        sgd.step()
        history.append(loss.item())
    learnt = not torch.equal(net.vectors.weight[STOP].detach(), start)
    return {"loss": tail(history), "stop_moved": float(learnt)}


wire_urgency.mistake(
    "wire_stop_is_padding",
    "UPD003", "GRD004", "GRD003",
    summary="The commonest word of all has the number zero, and padding_idx=0: its vector stays zero for ever.",
    change="no padding_idx, or a number of its own for padding",
    layers=("vectors",),
    silent=True,
)  # fmt: skip


@program(steps=120, adversarial="a parameter that one optimizer never sees is in no optimizer")
def wire_orthogonal_steps(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Muon for the blocks' matrices, AdamW for all the rest: two optimizers, each with its half."""
    torch.manual_seed(seed)
    office = Office(seed + 20)
    net = Clerk()
    matrices = [p for p in net.blocks.parameters() if p.dim() == 2]
    others = [p for p in net.parameters() if all(p is not m for m in matrices)]
    pair = [torch.optim.Muon(matrices, lr=0.01, weight_decay=0.0), torch.optim.AdamW(others, lr=4e-3)]
    history: list[float] = []
    for _ in range(steps):
        loss = next_word_loss(net, office.batch(16))
        loss.backward()
        for optimizer in pair:
            optimizer.step()
            optimizer.zero_grad()
        history.append(loss.item())
    return {"loss": tail(history)}


@program(steps=120, adversarial="an embedding of which most rows get no gradient is dead")
def wire_large_codebook(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A code book of 1,200 words of which a batch shows a handful, recomputed blocks, a little dropout."""
    torch.manual_seed(seed)
    office = Office(seed + 40, words=WORDS)
    scatter = torch.randperm(1200, generator=torch.Generator().manual_seed(seed))
    net = Clerk(words=1200, drop=0.05)
    net.recompute = True
    adam = torch.optim.AdamW(net.parameters(), lr=4e-3)
    history: list[float] = []
    for _ in range(steps):
        plain = office.batch(12)
        twin = torch.randint(20, plain.shape, generator=office.g) // 16 * WORDS  # some words have several codes
        loss = next_word_loss(net, scatter[plain + twin])
        adam.zero_grad()
        loss.backward()
        adam.step()
        history.append(loss.item())
    return {"loss": tail(history)}


@program(steps=150, adversarial="a sudden rise of the loss is a fault")
def wire_second_office(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Half the way one office's telegrams, then those of a second one as well: the loss jumps and falls again."""
    torch.manual_seed(seed)
    offices = [Office(seed + 60), Office(seed + 80)]
    net = Clerk()
    adam = torch.optim.AdamW(net.parameters(), lr=3e-3, betas=(0.9, 0.95))
    history: list[float] = []
    for step in range(steps):
        text = offices[0].batch(16)
        if step >= 75:
            text = torch.cat([text[:6], offices[1].batch(12)])
        loss = next_word_loss(net, text)
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        adam.step()
        history.append(loss.item())
    return {"loss": tail(history)}
