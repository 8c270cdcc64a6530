"""Subtitles written by a small causal transformer, in micro-batches; the language is a noisy grammar of 30 words."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

WORDS, LENGTH, PAD = 30, 16, 0


def sentences(g: torch.Generator, grammar: Tensor, n: int) -> Tensor:
    """Every word but the last in ten follows from the one before; word 0 is padding and never said."""
    text = torch.empty(n, LENGTH + 1, dtype=torch.long)
    text[:, 0] = torch.randint(1, WORDS, (n,), generator=g)
    for t in range(LENGTH):
        follow = grammar[text[:, t], torch.randint(2, (n,), generator=g)]
        stray = torch.rand(n, generator=g) < 0.1
        text[:, t + 1] = torch.where(stray, torch.randint(1, WORDS, (n,), generator=g), follow)
    return text


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (part.view(b, t, 2, c // 2).transpose(1, 2) for part in self.qkv(self.ln1(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln2(x))


class Subtitler(nn.Module):
    def __init__(self, width: int = 32, padding: int | None = PAD) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width, padding_idx=padding)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.final = nn.LayerNorm(width)
        self.speak = nn.Linear(width, WORDS)

    def forward(self, text: Tensor) -> Tensor:
        return self.speak(self.final(self.blocks(self.words(text) + self.places[: text.shape[1]])))


def surprise(model: nn.Module, text: Tensor, reduction: str = "mean") -> Tensor:
    scores = model(text[:, :-1])
    return nn.functional.cross_entropy(
        scores.flatten(0, 1), text[:, 1:].flatten(), ignore_index=PAD, reduction=reduction
    )


@program(steps=130, bites="held_out")
def subtitle_writer(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two pre-norm blocks, four micro-batches of eight to a step, SGD with momentum and a short warm-up."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    grammar = torch.randint(1, WORDS, (WORDS, 2), generator=g)
    model = Subtitler()
    opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, total_iters=15)
    total = 0.0
    for step in range(steps):
        total = 0.0
        added = fault == "subtitles_small_pieces_added" or (fault == "subtitles_more_pieces_later" and step >= 60)
        pieces, size = (20, 2) if added else (4, 8)
        for _ in range(pieces):
            loss = surprise(model, sentences(g, grammar, size))
            if not added:
                loss = loss / pieces
            loss.backward()
            total += loss.item()
        opt.step()
        opt.zero_grad()
        warm.step()
    with torch.no_grad():
        held_out = surprise(model, sentences(g, grammar, 200))
    return {"loss": total, "held_out": held_out.item() if held_out.isfinite() else 1e9}


subtitle_writer.mistake(
    "subtitles_small_pieces_added",
    "LSS004", "UPD001", "OPT007", "OPT001", "GRD002", "NUM001", "NUM002", "NUM003", "NUM004",
    summary="Twenty micro-batches to a step and no division by their number.",
    change="loss / pieces",
    steps=90,
)  # fmt: skip
subtitle_writer.mistake(
    "subtitles_more_pieces_later",
    "LSS004", "UPD001", "OPT007", "OPT001", "GRD002", "NUM001", "NUM002", "NUM003", "NUM004", "OPT003", "GRD006",
    summary="From step 60 on it gathers twenty small pieces in place of four, and adds them.",
    change="loss / pieces",
    onset=60,
    steps=110,
)  # fmt: skip


def scraps(g: torch.Generator, n: int) -> Tensor:
    """Interjections of two words, said in any order, and padding to the full length."""
    text = torch.zeros(n, LENGTH + 1, dtype=torch.long)
    text[:, :2] = torch.randint(1, WORDS, (n, 2), generator=g)
    return text


@program(steps=120, bites="held_out")
def subtitle_scraps_and_speech(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Micro-batches of long speech and of two-word scraps; the loss of a step is the mean over all its words."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed + 40)
    grammar = torch.randint(1, WORDS, (WORDS, 2), generator=g)
    model = Subtitler()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98))
    value = 0.0
    for _ in range(steps):
        batch = [sentences(g, grammar, 6), *(scraps(g, 2) for _ in range(7))]
        words = sum(int((text[:, 1:] != PAD).sum()) for text in batch)
        opt.zero_grad()
        value = 0.0
        for text in batch:
            if fault == "subtitles_every_piece_weighs_alike":
                loss = surprise(model, text) / len(batch)
            else:
                loss = surprise(model, text, "sum") / words
            loss.backward()
            value += loss.item()
        opt.step()
    with torch.no_grad():
        held_out = surprise(model, sentences(g, grammar, 200)).item()
    return {"loss": value, "held_out": held_out}


subtitle_scraps_and_speech.mistake(
    "subtitles_every_piece_weighs_alike",
    "LSS004", "GRD008", "GRD009",
    summary="A mean of the pieces' means: a word of a scrap weighs fifty times as much as a word of speech.",
    change="divide the sum of all pieces by all words",
)  # fmt: skip


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = Subtitler(padding=None)
        self.body.speak.weight = self.body.words.weight
        nn.init.normal_(self.body.words.weight, std=0.1)

    def forward(self, text: Tensor) -> Tensor:
        return self.body(text)


@program(steps=130, adversarial="two modules share one weight, and the loss stays far above zero: not learning")
def subtitles_tied_and_smoothed(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Tied embedding and head, label smoothing of 0.2, AdamW with warm-up and clipping to one."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    grammar = torch.randint(1, WORDS, (WORDS, 2), generator=g)
    model = Tied()
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.1, betas=(0.9, 0.95))
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: min(1.0, (i + 1) / 20))
    loss = torch.zeros(())
    for _ in range(steps):
        text = sentences(g, grammar, 24)
        scores = model(text[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten(), label_smoothing=0.2)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        warm.step()
    return {"loss": loss.item()}


@program(steps=120, adversarial="the number of micro-batches changes and gradients are kept over several backwards")
def subtitles_growing_batches(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The batch grows from one piece to six by accumulation, each piece divided by their number; bf16 autocast."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    grammar = torch.randint(1, WORDS, (WORDS, 2), generator=g)
    model = Subtitler()
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    value = 0.0
    for step in range(steps):
        pieces = 1 + step // 20
        value = 0.0
        for _ in range(pieces):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = surprise(model, sentences(g, grammar, 8)) / pieces
            loss.backward()
            value += loss.item()
        opt.step()
        opt.zero_grad(set_to_none=False)
    return {"loss": value}
