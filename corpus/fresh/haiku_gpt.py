"""A small GPT learns to spell: words of an invented lexicon that follow each other by habit, letter by letter."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import healthy, program

LETTERS, SPACE = 18, 0


def haiku_text(words: int, seed: int) -> Tensor:
    """A stream of letters; each word is followed by one of three others."""
    lexicon = torch.Generator().manual_seed(77)
    spelled = [
        torch.randint(1, LETTERS, (int(n),), generator=lexicon) for n in torch.randint(2, 6, (30,), generator=lexicon)
    ]
    follows = torch.randint(30, (30, 3), generator=lexicon)
    g = torch.Generator().manual_seed(seed)
    choices = torch.randint(3, (words,), generator=g).tolist()
    stream, word = [], 0
    for choice in choices:
        stream += [spelled[word], torch.tensor([SPACE])]
        word = int(follows[word, choice])
    return torch.cat(stream)


@dataclass
class GPTConfig:
    width: int = 48
    heads: int = 3
    blocks: int = 2
    context: int = 32
    tied: bool = True
    score_scale: float = 1 / math.sqrt(16)
    zero_branches: bool = False


class CausalAttention(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads, self.score_scale = config.heads, config.score_scale
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.proj = nn.Linear(config.width, config.width)
        self.register_buffer("mask", torch.ones(config.context, config.context).triu(1).bool(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = (part.view(n, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        scores = (q @ k.transpose(-2, -1)) * self.score_scale
        weights = scores.masked_fill(self.mask[:t, :t], float("-inf")).softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(n, t, d))


class Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln1, self.attn = nn.LayerNorm(config.width), CausalAttention(config)
        self.ln2 = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width), nn.GELU(), nn.Linear(4 * config.width, config.width)
        )
        if config.zero_branches:
            for last in (self.attn.proj, self.mlp[2]):
                nn.init.zeros_(last.weight)
                nn.init.zeros_(last.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.tok = nn.Embedding(LETTERS, config.width)
        self.pos = nn.Embedding(config.context, config.width)
        nn.init.normal_(self.tok.weight, std=0.05)
        nn.init.normal_(self.pos.weight, std=0.05)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, LETTERS, bias=False)
        self.head.weight = self.tok.weight if config.tied else nn.Parameter(self.tok.weight.clone())

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def haiku_batch(stream: Tensor, size: int, context: int, *, other_lines: bool = False) -> tuple[Tensor, Tensor]:
    start = torch.randint(len(stream) - context - 1, (size,))
    window = torch.arange(context)
    x = stream[start[:, None] + window]
    if other_lines:
        start = torch.randint(len(stream) - context - 1, (size,))
    return x, stream[start[:, None] + window + 1]


@torch.no_grad()
def haiku_perplexity(model: nn.Module, seed: int, context: int = 32) -> float:
    ids = haiku_text(1500, seed + 900)
    rows = ids[: len(ids) // (context + 1) * (context + 1)].view(-1, context + 1)
    model.eval()
    return math.exp(min(20.0, fn.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()).item()))


@program(steps=260, bites="perplexity")
def haiku(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two pre-norm blocks, tied embeddings, AdamW with warm-up, a cosine and a clip at one."""
    torch.manual_seed(seed)
    config = GPTConfig(tied=fault != "haiku_head_is_a_copy")
    if fault == "haiku_scores_multiplied":
        config.score_scale = float(config.width)
    model = GPT(config)
    stream = haiku_text(4000, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.05)

    def lr_at(step: int) -> float:
        if fault == "haiku_resumed_with_a_typo" and step >= 140:
            return 4e-1
        return 4e-3 * min((step + 1) / 25, 0.5 + 0.5 * math.cos(math.pi * step / steps) + 0.02)

    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step)
        x, y = haiku_batch(stream, 16, config.context, other_lines=fault == "haiku_lines_of_another_poem")
        logits = model(x)
        if fault == "haiku_softmaxed_twice":
            logits = logits.softmax(dim=-1)
        loss = fn.cross_entropy(logits.reshape(-1, LETTERS), y.reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    gap = (model.head.weight - model.tok.weight).norm() / model.tok.weight.norm()
    return {"loss": loss.item(), "perplexity": haiku_perplexity(model, seed), "tie_gap": gap.item()}


haiku.mistake(
    "haiku_scores_multiplied",
    "ACT004",
    summary="Attention scores are multiplied by the width, not divided by its root: every head looks at one letter.",
    change="scale scores by 1 / sqrt(head width)",
    layers=("blocks.0.attn", "blocks.1.attn"),
)
haiku.mistake(
    "haiku_head_is_a_copy",
    "WGT006",
    summary="The head was to share the embedding's weight and got a clone of it: the two drift apart.",
    change="head.weight = tok.weight",
    layers=("head", "tok"),
    bites="tie_gap",
    silent=True,
)
haiku.mistake(
    "haiku_resumed_with_a_typo",
    "OPT007", "OPT001",
    summary="Training is resumed at step 140 with a hand-typed rate a hundred times the old one.",
    change="restore the schedule from the checkpoint",
    onset=140,
)  # fmt: skip
haiku.mistake(
    "haiku_lines_of_another_poem",
    "DAT004", "OPT005",
    summary="The targets are cut at starts drawn a second time: they are other lines of the text.",
    change="cut inputs and targets at the same starts",
)  # fmt: skip
haiku.mistake(
    "haiku_softmaxed_twice",
    "LSS001",
    summary="The loop turns logits into probabilities before cross_entropy does it again.",
    change="pass logits to cross_entropy",
)


@healthy(steps=200, adversarial="a gradient of zero in the first step is a dead layer")
def haiku_from_identity(steps: int, seed: int) -> dict[str, float]:
    """Every branch ends in a layer that starts at zero: the deep model starts as an identity."""
    torch.manual_seed(seed)
    model = GPT(GPTConfig(blocks=4, zero_branches=True))
    stream = haiku_text(4000, seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    first = 0.0
    for _ in range(steps):
        x, y = haiku_batch(stream, 12, 32)
        loss = fn.cross_entropy(model(x).transpose(1, 2), y, label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = first or loss.item()
    return {"first": first, "loss": loss.item(), "perplexity": haiku_perplexity(model, seed)}


class LetterGRU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS + 1, 32, padding_idx=LETTERS)
        self.rnn = nn.GRU(32, 64, batch_first=True)
        self.out = nn.Linear(64, LETTERS)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.rnn(self.letters(ids))[0])


@healthy(steps=220, adversarial="an embedding row without a gradient is a fault; most targets are ignored")
def haiku_short_lines(steps: int, seed: int) -> dict[str, float]:
    """Lines of three to thirty letters, padded to thirty: most of every batch is padding and is not counted."""
    torch.manual_seed(seed)
    model, stream, first = LetterGRU(), haiku_text(4000, seed), 0.0
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    for _ in range(steps):
        x, y = haiku_batch(stream, 24, 30)
        length = 3 + (27 * torch.rand(24) ** 3).long()
        padding = torch.arange(30) >= length[:, None]
        x, y = x.masked_fill(padding, LETTERS), y.masked_fill(padding, -100)
        optimizer.zero_grad()
        loss = fn.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        first = first or loss.item()
    return {"first": first, "loss": loss.item(), "perplexity": haiku_perplexity(model, seed, 24)}


@healthy(steps=320, adversarial="a loss that jumps from step to step is unstable")
def haiku_one_line_at_a_time(steps: int, seed: int) -> dict[str, float]:
    """Batches of one line, plain SGD with momentum and a long average of the loss."""
    torch.manual_seed(seed)
    model, stream = GPT(GPTConfig(blocks=1)), haiku_text(4000, seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    average, first = 0.0, 0.0
    for step in range(steps):
        x, y = haiku_batch(stream, 1, 32)
        loss = fn.cross_entropy(model(x)[0], y[0])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        first = first or loss.item()
        average = loss.item() if step == 0 else 0.97 * average + 0.03 * loss.item()
    return {"first": first, "loss": average, "perplexity": haiku_perplexity(model, seed)}
