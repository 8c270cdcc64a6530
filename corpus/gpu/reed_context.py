"""What marked words of a long text mostly say; activations are computed anew in the backward pass."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from corpus.case import program
from corpus.gpu.sizes import REED

SOUGHT = 4
TONES = 2


class WideAttention(nn.Module):
    def __init__(self, width: int, scale: float | None) -> None:
        super().__init__()
        self.scale = scale
        self.to_q, self.to_k = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.to_v, self.to_out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        for part in (self.to_q, self.to_k, self.to_v):
            nn.init.orthogonal_(part.weight)
        nn.init.zeros_(self.to_out.weight)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (2, -1)).transpose(1, 2) for part in (self.to_q, self.to_k, self.to_v))
        y = functional.scaled_dot_product_attention(q, k, v, scale=self.scale)
        return self.to_out(y.transpose(1, 2).flatten(-2))


class ReedBlock(nn.Module):
    def __init__(self, width: int, scale: float | None) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = WideAttention(width, scale)
        self.mlp = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ReedReader(nn.Module):
    """Words, tones and marks go in; behind the text stand as many questions as there are marks."""

    def __init__(self, words: int, width: int, depth: int, scale: float | None, thrifty: bool) -> None:
        super().__init__()
        self.thrifty = thrifty
        self.words = nn.Embedding(words, width)
        self.tones = nn.Embedding(TONES, width)
        self.marks = nn.Embedding(1 + SOUGHT, width)
        self.question = nn.Parameter(torch.randn(SOUGHT, width))
        self.blocks = nn.ModuleList(ReedBlock(width, scale) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.answer = nn.Linear(width, words)

    def forward(self, words: Tensor, tones: Tensor, marks: Tensor) -> Tensor:
        x = self.words(words) + self.tones(tones) + self.marks(marks)
        x = torch.cat([x, self.question.expand(len(x), -1, -1)], dim=1)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.training else block(x)
            assert isinstance(x, Tensor)
        asked = x[:, -SOUGHT:]
        return self.answer(self.norm(asked.detach().clone() if self.thrifty else asked))


class Texts:
    """Half of the words bear one of four marks; what words under a mark mostly mean, with their tone, is asked."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.dice = torch.Generator(device).manual_seed(seed)
        self.meaning = torch.stack(
            [torch.randperm(REED.kinds, generator=self.dice, device=device) for _ in range(TONES)]
        )
        self.saying = self.meaning.argsort(1)

    def batch(self, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        device, shape = self.meaning.device, (count, REED.length)
        marks = torch.randint(2 * SOUGHT, shape, generator=self.dice, device=device)
        marks = torch.where(marks < SOUGHT, marks + 1, 0)
        tones = torch.randint(TONES, shape, generator=self.dice, device=device)
        answers = torch.randint(REED.kinds, (count, SOUGHT), generator=self.dice, device=device)
        meant = answers.gather(1, (marks - 1).clamp(min=0))
        stray = torch.randint(REED.kinds, shape, generator=self.dice, device=device)
        loyal = (torch.rand(shape, generator=self.dice, device=device) < 0.5) & (marks > 0)
        return self.saying[tones, torch.where(loyal, meant, stray)], tones, marks, answers


@program(steps=REED.steps, bites="accuracy")
def reed_context(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """A transformer tells what the words under each mark in a long text mostly mean."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    texts = Texts(seed + 2, device)
    scale = 1.0 if mistake == "reed_context_plain_product" else None
    thrifty = mistake == "reed_context_thrift"
    model = ReedReader(REED.kinds, REED.width, REED.depth, scale, thrifty).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=REED.rate, weight_decay=0.01)
    warm_up = max(1, REED.steps // 15)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, 0.02 + 0.98 * max(0.0, 1 - step / REED.steps))
    )

    def read(count: int) -> tuple[Tensor, Tensor]:
        words, tones, marks, answers = texts.batch(count)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(words, tones, marks)
        right = (logits.argmax(-1) == answers).float().mean()
        return functional.cross_entropy(logits.flatten(0, 1).float(), answers.flatten()), right

    for _ in range(steps):
        loss, _ = read(REED.batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    model.eval()
    with torch.no_grad():
        loss, accuracy = read(64)
    return {"loss": loss.item() if math.isfinite(loss.item()) else 20.0, "accuracy": accuracy.item()}


reed_context.mistake(
    "reed_context_plain_product",
    "ACT004",
    summary="Queries and keys of many numbers are multiplied without the scale, so attention is one-sided at once.",
    change="products are divided by the root of the width",
    layers=[f"blocks.{depth}.attention" for depth in range(REED.depth)],
    bites="loss",
)
reed_context.mistake(
    "reed_context_thrift",
    "GRD003",
    summary="What the blocks made of the questions is copied out of the long text, and detached with it.",
    change="nothing is detached",
    layers=["words", "tones", "marks", "question", "blocks"],
)
