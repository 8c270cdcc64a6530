"""A small language model that reads genes: codon after codon, with one table for reading and for writing."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as fn
from torch import Tensor, nn

from corpus.case import program

CODONS, LENGTH = 24, 20


def genes(count: int, seed: int) -> Tensor:
    """The next codon follows mostly from the one two places before it, a little from the last one."""
    g = torch.Generator().manual_seed(seed)
    far = torch.randperm(CODONS, generator=g)
    near = torch.randperm(CODONS, generator=g)
    reads = [torch.randint(CODONS, (count,), generator=g) for _ in range(2)]
    for _ in range(LENGTH - 1):
        chance = torch.rand(count, generator=g)
        noise = torch.randint(CODONS, (count,), generator=g)
        reads.append(torch.where(chance < 0.7, far[reads[-2]], torch.where(chance < 0.9, near[reads[-1]], noise)))
    return torch.stack(reads, 1)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        y = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, 4)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GeneModel(nn.Module):
    def __init__(self, dim: int = 32, tie: bool = True, copy: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(CODONS, dim)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.place = nn.Parameter(torch.randn(LENGTH, dim) * 0.1)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(2))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, CODONS, bias=False)
        if copy:
            self.head.weight = nn.Parameter(self.embed.weight.clone())
        elif tie:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.place[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def warm_cosine(step: int, total: int, warm: int = 15) -> float:
    if step < warm:
        return (step + 1) / warm
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))


@program(steps=180)
def codons(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A two-block causal transformer with a tied table, AdamW, warm-up, cosine and clipping."""
    torch.manual_seed(seed)
    data = genes(512, seed)
    model = GeneModel(copy=fault == "codon_table_cloned")
    if fault == "codon_second_block_sharp":
        with torch.no_grad():  # a port from a code base that scales its projections elsewhere
            for name, weight in model.blocks[1].named_parameters():
                if name in ("attn.query.weight", "attn.key.weight"):
                    weight.mul_(25)
    lr = {"codon_starts_hot": 0.3, "codon_learns_tomorrow": 3e-7}.get(fault, 4e-3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: 1.0 if fault == "codon_starts_hot" else warm_cosine(s, steps)
    )
    first = last = logz = 0.0
    for step in range(steps):
        batch = data[torch.randint(len(data), (32,))]
        logits = model(batch[:, :-1])
        loss = fn.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        if fault == "codon_penalty_rewards":
            loss = loss - 0.1 * model.head.weight.square().sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step == 0:
            first = loss.item()
        last = loss.item() if step == 0 else 0.9 * last + 0.1 * loss.item()
        logz = logits.detach().logsumexp(-1).abs().mean().item()
    apart = (model.embed.weight - model.head.weight).norm().item()
    return {"loss": last, "first": first, "apart": apart, "logz": logz}


codons.mistake(
    "codon_table_cloned",
    "WGT006", "UPD003",
    summary="The writing table is meant to be the reading table, but a clone of it is assigned.",
    change="assign the parameter itself",
    layers=("embed", "head"),
    bites="apart",
    silent=True,
)  # fmt: skip
codons.mistake(
    "codon_second_block_sharp",
    "ACT004", "WGT003",
    summary="The queries and keys of the second block are ported with a scale of twenty-five each.",
    change="leave the projections as they are drawn",
    layers=("blocks.1.attn",),
)  # fmt: skip
codons.mistake(
    "codon_starts_hot",
    "OPT007", "UPD001", "OPT001", "OPT003", "ACT004",
    summary="AdamW begins with 0.3 at once: no warm-up, no decay.",
    change="4e-3 with fifteen steps of warm-up",
)  # fmt: skip
codons.mistake(
    "codon_penalty_rewards",
    "WGT001", "LSS003",
    summary="The penalty on the writing table is subtracted: the table grows without end, and its logits with it.",
    change="add the penalty",
    layers=("head", "embed"),
    bites="logz",
)  # fmt: skip
codons.mistake(
    "codon_learns_tomorrow",
    "OPT007", "UPD002", "OPT005",
    summary="A rate of 3e-7, read in units of another optimizer.",
    change="4e-3",
)  # fmt: skip


@program(steps=150, adversarial="loss reaches nearly zero and gradients with it: vanishing gradients")
def codons_by_heart(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Eight genes are learnt by heart, on purpose, to see that the code works."""
    torch.manual_seed(seed)
    data = genes(8, seed)
    model = GeneModel(dim=48)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95))
    first = last = 0.0
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * min(1.0, (step + 1) / 10)
        loss = fn.cross_entropy(model(data[:, :-1]).flatten(0, 1), data[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = loss.item() if step == 0 else first
        last = loss.item()
    return {"loss": last, "first": first}


@program(steps=150, adversarial="the embedding and the head have the same size and drift apart: a broken tie")
def codons_two_tables(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two tables on purpose, drawn apart, and z-loss on the normaliser."""
    torch.manual_seed(seed)
    data = genes(512, seed)
    model = GeneModel(tie=False)
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
    first = last = 0.0
    for step in range(steps):
        batch = data[torch.randint(len(data), (32,))]
        logits = model(batch[:, :-1])
        z_loss = 1e-4 * logits.logsumexp(-1).square().mean()
        loss = fn.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()) + z_loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        first = loss.item() if step == 0 else first
        last = loss.item() if step == 0 else 0.9 * last + 0.1 * loss.item()
    return {"loss": last, "first": first}
