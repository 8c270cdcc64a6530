"""A little language of matching brackets and agreeing words, learned by a decoder-only transformer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import program

VOCABULARY, CONTEXT, WIDTH = 20, 24, 32


def corpus(n: int, seed: int) -> Tensor:
    """Subject, verb and object agree in kind; every third sentence is bracketed and said again."""
    g = torch.Generator().manual_seed(seed)
    texts = []
    for _ in range(n):
        text: list[int] = []
        while len(text) <= CONTEXT:
            kind = int(torch.randint(4, (), generator=g))
            sentence = [2 + kind, 6 + (kind + int(torch.randint(2, (), generator=g))) % 4, 10 + kind, 14 + kind]
            text += [0, *sentence, 1, *sentence] if int(torch.randint(3, (), generator=g)) == 0 else sentence
        texts.append(text[: CONTEXT + 1])
    return torch.tensor(texts)


class CausalBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (z.view(b, t, 4, c // 4).transpose(1, 2) for z in self.qkv(self.ln1(x)).chunk(3, -1))
        y = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(fn.gelu(self.up(self.ln2(x))))


class LittleLanguageModel(nn.Module):
    def __init__(self, tied: bool = True, token_std: float = 0.02, depth: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[CausalBlock() for _ in range(depth)])
        self.final = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        nn.init.normal_(self.tokens.weight, std=token_std)
        nn.init.normal_(self.places.weight, std=0.02)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, text: Tensor) -> Tensor:
        x = self.tokens(text) + self.places(torch.arange(text.shape[1]))
        return self.head(self.final(self.blocks(x)))


def next_token_loss(logits: Tensor, text: Tensor) -> Tensor:
    return fn.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def held_out(model: nn.Module, seed: int) -> float:
    text = corpus(60, seed + 900)
    with torch.no_grad():
        return min(1e6, next_token_loss(model(text[:, :-1]), text).nan_to_num(1e6).item())


@program(steps=140, bites="held_out")
def grammar_model(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Tied embeddings, AdamW, warm-up, cosine and clipping."""
    torch.manual_seed(seed)
    text = corpus(300, seed)
    model = LittleLanguageModel(token_std=4.0 if fault == "tokens_too_loud" else 0.02)
    betas = (0.999, 0.9) if fault == "betas_the_wrong_way_round" else (0.9, 0.95)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=betas)
    worst = 0.0
    for step in range(steps):
        rate = 4e-3 * min(1, (step + 1) / 12) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
        if fault == "optimizer_in_the_loop":
            optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95))
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = text[torch.randint(300, (24,))]
        if fault == "page_of_noise" and 90 <= step < 93:
            batch = torch.randint(VOCABULARY, batch.shape)  # a file in another encoding
        logits = model(batch[:, :-1])
        if fault == "probabilities_for_logits":
            logits = logits.softmax(-1)
        loss = next_token_loss(logits, batch)
        if step > 60:
            worst = max(worst, loss.item())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    remembered = float(optimizer.state[model.tokens.weight]["step"])
    return {"held_out": held_out(model, seed), "worst": worst, "steps_remembered": remembered}


grammar_model.mistake(
    "tokens_too_loud",
    "WGT003",
    summary="The token table, which is the head as well, starts two hundred times too large.",
    change="a standard deviation of 0.02",
    layers=("tokens", "head"),
)
grammar_model.mistake(
    "betas_the_wrong_way_round",
    "OPT008", "OPT004", "OPT007", "UPD001",
    summary="Adam's betas are exchanged: the mean is slower than the scale.",
    change="betas of 0.9 and 0.95",
)  # fmt: skip
grammar_model.mistake(
    "page_of_noise",
    "DAT002", "OPT003", "GRD006",
    summary="Three batches come from a file in another encoding.",
    change="skip the file",
    onset=90,
    bites="worst",
    silent=True,
)  # fmt: skip
grammar_model.mistake(
    "probabilities_for_logits",
    "LSS001",
    summary="The model returns probabilities, and the cross-entropy takes them for logits.",
    change="return logits",
)
grammar_model.mistake(
    "optimizer_in_the_loop",
    "OPT008",
    summary="AdamW is built anew in every step: it forgets what it knew of the gradients.",
    change="build it before the loop",
    bites="steps_remembered",
    silent=True,
)


@program(steps=140, bites="held_out", adversarial="a loss times a thousand has exploding gradients")
def grammar_summed(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """The loss is summed over all tokens of the batch; Adam divides the size out."""
    torch.manual_seed(seed)
    text = corpus(300, seed)
    model = LittleLanguageModel(tied=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = text[torch.randint(300, (24,))]
        logits = model(batch[:, :-1])
        loss = fn.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"held_out": held_out(model, seed)}


@program(steps=140, bites="held_out", adversarial="a rate that jumps up tenfold is a mistake")
def grammar_restarts(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Cosine with warm restarts: the rate falls to a thirtieth and jumps back three times."""
    torch.manual_seed(seed)
    text = corpus(300, seed)
    model = LittleLanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=steps // 4 + 1, eta_min=1.3e-4)
    for _ in range(steps):
        batch = text[torch.randint(300, (24,))]
        loss = next_token_loss(model(batch[:, :-1]), batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return {"held_out": held_out(model, seed)}


@program(steps=60, bites="held_out", adversarial="gradients that are there before the backward pass were not cleared")
def grammar_accumulated(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Four micro-batches for each step, every loss divided by four."""
    torch.manual_seed(seed)
    text = corpus(300, seed)
    model = LittleLanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    for micro in range(4 * steps):
        batch = text[torch.randint(300, (10,))]
        (next_token_loss(model(batch[:, :-1]), batch) / 4).backward()
        if micro % 4 == 3:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return {"held_out": held_out(model, seed)}
