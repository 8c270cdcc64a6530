"""A small language model of rhymed verse: tied weights, a trainer class, warm-up and cosine decay."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.anew_everyday.trainer import Trainer
from corpus.case import program

VOCABULARY, LENGTH, WIDTH = 40, 24, 48


def verses(seed: int, count: int) -> Tensor:
    """Each token follows from the two before it by one of two rules; one in ten is free."""
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCABULARY, (count, LENGTH), generator=g)
    free = torch.rand(count, LENGTH, generator=g) < 0.1
    for place in range(2, LENGTH):
        before = tokens[:, place - 1]
        follows = torch.where(before % 2 == 0, 3 * before + 1, before + 7 * (tokens[:, place - 2] % 2)) % VOCABULARY
        tokens[:, place] = torch.where(free[:, place], tokens[:, place], follows)
    return tokens


class VerseModel(nn.Module):
    def __init__(self, keep: float) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.place = nn.Embedding(LENGTH, WIDTH)
        nn.init.normal_(self.token.weight, std=0.05)
        nn.init.normal_(self.place.weight, std=0.05)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 96, dropout=round(1 - keep, 2), batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.token.weight
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def embed(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1])
        return self.token(tokens) + self.place(places)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.body(self.embed(tokens), mask=self.mask[:length, :length], is_causal=True)
        return self.head(self.norm(x))


class VerseTrainer(Trainer):
    def loss_of(self, batch: Tensor) -> Tensor:
        logits = self.model(batch[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def cosine(total: int, warm_up: int = 20):
    def factor(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warm_up) / max(1, total - warm_up))))

    return factor


@program(steps=240, bites="loss")
def verse_language_model(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Transformer language model with tied embeddings under a home-made trainer."""
    torch.manual_seed(seed)
    data = verses(seed, 512)
    keep = 0.05 if mistake == "verse_keeps_five_percent" else 0.95
    model = VerseModel(keep)  # at fault: verse_keeps_five_percent
    weights = model.parameters()
    decay = 30.0 if mistake == "verse_decay_far_too_strong" else 0.01
    optimizer = torch.optim.AdamW(weights, 5e-3, weight_decay=decay)  # at fault: verse_decay_far_too_strong
    epochs = 24  # of ten batches each
    total = epochs if mistake == "verse_schedule_counts_epochs" else steps
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, cosine(total))  # at fault: verse_schedule_counts_epochs

    def batches() -> Iterator[Tensor]:
        for _ in range(steps):
            yield data[torch.randint(len(data), (24,))]

    trainer = VerseTrainer(model, optimizer, schedule, clip=1.0)
    trainer.fit(batches())
    model.eval()
    with torch.no_grad():
        held_out = trainer.loss_of(verses(seed + 40, 200)).item()
    return {"loss": held_out, "train_loss": trainer.history[-1]}


verse_language_model.mistake(
    "verse_keeps_five_percent",
    "MOD002",
    "MOD001",
    summary="The share to drop is given where the share to keep is expected: dropout of 95 %.",
    change="keep=0.95",
    layers=("body",),
)
verse_language_model.mistake(
    "verse_decay_far_too_strong",
    "OPT008",
    "WGT005",
    summary="A weight decay of 30 meant for another optimizer pulls every weight to zero.",
    change="weight_decay=0.01",
)
verse_language_model.mistake(
    "verse_schedule_counts_epochs",
    "OPT007",
    "UPD002",
    summary="The cosine is given the number of epochs and stepped per batch: the rate is zero after 24 steps.",
    change="the number of steps",
    onset=20,
)
