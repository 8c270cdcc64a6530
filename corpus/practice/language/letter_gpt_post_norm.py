"""A character-level GPT, post-norm as in the old paper, one weight for reading and writing the letters."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - as its users write it
from torch import Tensor, nn

from corpus.case import program

CONTEXT, WIDTH, HEADS = 24, 32, 4
ALPHABET = " abcdefghijklmnopqrstuvwxyz"


def make_text(seed: int, words: int = 4000) -> Tensor:
    """Forty invented words, each with four that may follow it."""
    g = torch.Generator().manual_seed(1000 + seed)
    lexicon = [torch.randint(1, 27, (int(torch.randint(2, 6, (), generator=g)),), generator=g) for _ in range(40)]
    follow = torch.randint(40, (40, 4), generator=g)
    choice = torch.randint(4, (words,), generator=g).tolist()
    word, pieces = 0, []
    for c in choice:
        pieces += [lexicon[word], torch.zeros(1, dtype=torch.long)]
        word = int(follow[word, c])
    return torch.cat(pieces)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.ones(CONTEXT, CONTEXT).tril().bool())

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (f(x).view(b, t, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
        scores = scores.masked_fill(~self.get_buffer("mask")[:t, :t], float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, WIDTH))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class LetterGPT(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(ALPHABET), WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        nn.init.normal_(self.letters.weight, std=WIDTH**-0.5)
        nn.init.normal_(self.positions.weight, std=WIDTH**-0.5)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(WIDTH, len(ALPHABET), bias=False)
        self.head.weight = self.letters.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.letters(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@program(steps=180)
def letterpress(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A post-norm GPT over letters with tied weights, AdamW, warm-up and cosine."""
    torch.manual_seed(seed)
    text = make_text(seed)
    model = LetterGPT()
    if fault == "press_sharp_attention":
        for linear in (model.blocks[1].attention.q, model.blocks[1].attention.k):  # type: ignore[union-attr]
            nn.init.normal_(linear.weight, std=3.0)  # type: ignore[arg-type]
    if fault == "press_untied":
        model.head.weight = nn.Parameter(model.letters.weight.clone())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=0.01, betas=(0.9, 0.98))
    peak, warm = 6e-3, 30
    if fault == "press_cold_start":
        peak, warm = 3e-2, 0
    losses: list[float] = []
    for step in range(steps):
        rise = min(1.0, (step + 1) / warm) if warm else 1.0
        for group in optimizer.param_groups:
            group["lr"] = peak * rise * (0.1 + 0.45 * (1 + math.cos(math.pi * step / steps)))
        if fault == "press_resumed_untied" and step == 70:  # the checkpoint holds two tensors where there was one
            state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            model.letters.load_state_dict({"weight": state["letters.weight"]})
            model.head.weight = nn.Parameter(state["head.weight"])
        at = torch.randint(len(text) - CONTEXT - 1, (24,))
        rows = torch.stack([text[i : i + CONTEXT + 1] for i in at.tolist()])
        logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    apart = (model.head.weight - model.letters.weight).norm().item()
    return {"loss": sum(losses[-15:]) / len(losses[-15:]), "first": losses[0], "apart": apart}


letterpress.mistake(
    "press_untied",
    "WGT006",
    summary="The head gets a parameter of its own, a copy of the table that it was to share.",
    change="assign the table's weight itself",
    layers=("head", "letters"),
    bites="apart",
    silent=True,
)
letterpress.mistake(
    "press_resumed_untied",
    "UPD003", "WGT006", "GRD007",
    summary="A resume in mid-run gives the head a new tensor that the optimizer has never heard of.",
    change="tie the weights again after loading",
    layers=("head", "letters"),
    onset=70,
    bites="apart",
    silent=True,
)  # fmt: skip
letterpress.mistake(
    "press_cold_start",
    "OPT007", "UPD001", "OPT003", "OPT001", "OPT005",
    summary="The warm-up is left out and the peak is five times higher: the post-norm stack never recovers.",
    change="warm up",
)  # fmt: skip
letterpress.mistake(
    "press_sharp_attention",
    "ACT004", "WGT003",
    summary="Queries and keys of the second block start with a standard deviation of three: it attends to one place.",
    change="the usual initialisation",
    layers=("blocks.1.attention",),
)  # fmt: skip
