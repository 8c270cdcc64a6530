"""A small language model of a lighthouse keeper's log: the first word of a day says how the rest of it goes on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from corpus.case import program

WORDS, DAYS, HOURS = 24, 4, 20  # vocabulary, kinds of day, words per day


@dataclass
class Settings:
    width: int = 32
    heads: int = 4
    blocks: int = 2
    dropout: float = 0.0
    filler: int | None = None
    tied: bool = False


def write_log(count: int, generator: torch.Generator, hours: int = HOURS) -> Tensor:
    """Each word follows from the one before it and from the kind of day; one word in ten is a slip of the pen."""
    kind = torch.randint(DAYS, (count,), generator=generator)
    words = [kind, torch.randint(WORDS, (count,), generator=generator)]
    for _ in range(hours - 1):
        follows = (words[-1] * 5 + 7 * kind + 1) % WORDS
        slip = torch.rand(count, generator=generator) < 0.1
        words.append(torch.where(slip, torch.randint(WORDS, (count,), generator=generator), follows))
    return torch.stack(words, 1)


class Attention(nn.Module):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.heads = s.heads
        self.qkv = nn.Linear(s.width, 3 * s.width)
        self.out = nn.Linear(s.width, s.width)
        self.scale = 1 / math.sqrt(s.width // s.heads)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        q, k, v = (p.view(batch, time, self.heads, -1).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        scores = (q @ k.transpose(-1, -2)) * self.scale
        future = torch.ones(time, time, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(s.width), nn.LayerNorm(s.width)
        self.attn = Attention(s)
        self.mlp = nn.Sequential(nn.Linear(s.width, 4 * s.width), nn.GELU(), nn.Linear(4 * s.width, s.width))
        self.drop = nn.Dropout(s.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attn(self.norm1(x)))
        return x + self.drop(self.mlp(self.norm2(x)))


class LogModel(nn.Module):
    def __init__(self, s: Settings) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, s.width, padding_idx=s.filler)
        self.hours = nn.Embedding(HOURS + 1, s.width)
        self.blocks = nn.ModuleList(Block(s) for _ in range(s.blocks))
        self.norm = nn.LayerNorm(s.width)
        self.head = nn.Linear(s.width, WORDS, bias=False)
        if s.tied:
            nn.init.normal_(self.words.weight, std=s.width**-0.5)
            self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.hours(torch.arange(words.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def next_word_loss(model: nn.Module, log: Tensor, smoothing: float = 0.0) -> Tensor:
    scores = model(log[:, :-1])
    return nn.functional.cross_entropy(scores.flatten(0, 1), log[:, 1:].flatten(), label_smoothing=smoothing)


@torch.no_grad()
def held_out(model: nn.Module, seed: int) -> dict[str, float]:
    model.eval()
    loss = next_word_loss(model, write_log(256, torch.Generator().manual_seed(seed + 9000))).item()
    model.train()
    return {"loss": min(loss, 1e6) if math.isfinite(loss) else 1e6}


@program(steps=160)
def keepers_log(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A two-block decoder learns the log with warm-up, cosine decay and clipping."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = LogModel(Settings(filler=5 if fault == "log_calm_is_filler" else None))
    if fault == "log_attention_never_scaled":  # drawn like the embeddings, and the root of the width is forgotten
        attention = model.blocks[1].get_submodule("attn")
        assert isinstance(attention, Attention)
        attention.qkv.weight.data[:64].normal_(std=1.0)
        attention.scale = 1.0
    filler_row = model.words.weight[5].detach().clone()
    body = [p for name, p in model.named_parameters() if not name.startswith("head")]
    head_rate = 3.0 if fault == "log_head_rate_of_another_model" else 3e-3
    groups = [{"params": body, "weight_decay": 0.05}, {"params": model.head.parameters(), "lr": head_rate}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, weight_decay=0.0)

    def rate(step: int) -> float:
        factor = min(1.0, (step + 1) / 10) * (0.55 + 0.45 * math.cos(math.pi * step / 160))
        if fault == "log_rate_after_the_crash" and step >= 90:  # resumed with the settings of the smoke test
            return 100 * factor
        return factor

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for _ in range(steps):
        log = write_log(32, generator)
        if fault == "log_reads_what_it_predicts":
            loss = nn.functional.cross_entropy(model(log[:, :-1]).flatten(0, 1), log[:, :-1].flatten())
        else:
            loss = next_word_loss(model, log)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    moved = (model.words.weight[5].detach() - filler_row).norm().item()
    return held_out(model, seed) | {"word_moved": moved if math.isfinite(moved) else 1e6}


keepers_log.mistake(
    "log_rate_after_the_crash",
    "OPT007", "UPD001", "OPT003", "OPT001", "GRD006",
    summary="After a crash at step 90 the run goes on with the rate of the smoke test, a hundred times too high.",
    change="the rate of before the crash",
    onset=90,
)  # fmt: skip
keepers_log.mistake(
    "log_attention_never_scaled",
    "ACT004", "WGT003",
    summary="Queries and keys of the second block are drawn from a unit normal and their product is not scaled.",
    change="draw them small and divide by the root of the width",
    layers=("blocks.1.attn",),
)  # fmt: skip
keepers_log.mistake(
    "log_head_rate_of_another_model",
    "UPD001", "OPT007", "WGT001", "OPT001",
    summary="The output layer has a learning rate of 3 under AdamW: its logits run away.",
    change="one learning rate for all",
    layers=("head",),
)  # fmt: skip
keepers_log.mistake(
    "log_calm_is_filler",
    "GRD004", "UPD003", "GRD003",
    summary="padding_idx is 5, but word 5 is an ordinary word: its row is zero and never learns.",
    change="no padding_idx",
    layers=("words",),
    bites="word_moved",
    silent=True,
)  # fmt: skip
keepers_log.mistake(
    "log_reads_what_it_predicts",
    "DAT004", "OPT006", "LSS003",
    summary="The targets are not moved by one: the model learns to repeat the word that it reads.",
    change="targets one word later",
)  # fmt: skip


@program(steps=160, adversarial="a learning rate that jumps fiftyfold is a mistake")
def log_in_three_cycles(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The log learnt with warm restarts: three cosine cycles, each from the full rate down to a fiftieth."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = LogModel(Settings())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=54, eta_min=6e-5)
    for _ in range(steps):
        loss = next_word_loss(model, write_log(32, generator))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    return held_out(model, seed)


@program(steps=150, adversarial="a loss that jumps from batch to batch is unstable")
def log_in_buckets(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Days are put into batches by their length, from three words to twenty: short ones cost more per word."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = LogModel(Settings())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98))
    for _ in range(steps):
        hours = int(torch.randint(3, HOURS + 1, (1,), generator=generator))
        loss = next_word_loss(model, write_log(640 // hours, generator, hours))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return held_out(model, seed)


@program(steps=150, adversarial="a loss that stays far from zero has not learnt")
def log_tied_and_smoothed(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Input and output share one table, labels are smoothed, a tenth of every branch is dropped."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = LogModel(Settings(dropout=0.1, tied=True))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=15)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=False)
        loss = next_word_loss(model, write_log(32, generator), smoothing=0.15)
        loss.backward()
        optimizer.step()
        warmup.step()
    return held_out(model, seed)
