"""Adapters of low rank teach a frozen encoder what an adapted one of the same base says."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program
from corpus.gpu.sizes import TIDE

RANK = 8
HEADS = 4


class Adapted(nn.Module):
    """A frozen linear map and two thin matrices beside it."""

    def __init__(self, weight: Tensor, rank: int, alpha: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.lora_a = nn.Parameter(torch.randn(rank, weight.shape[1]) / math.sqrt(weight.shape[1]))
        self.lora_b = nn.Parameter(torch.zeros(weight.shape[0], rank))
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight) + self.scale * functional.linear(
            functional.linear(x, self.lora_a), self.lora_b
        )


def seasoned(outer: int, inner: int, dice: torch.Generator) -> Tensor:
    """A matrix with the falling spectrum that training leaves."""
    u, _ = torch.linalg.qr(torch.randn(outer, outer, generator=dice))
    v, _ = torch.linalg.qr(torch.randn(inner, inner, generator=dice))
    rank = min(outer, inner)
    spectrum = torch.arange(1, rank + 1).float() ** -0.6
    spectrum = spectrum * math.sqrt(rank) / spectrum.norm()
    return (u[:, :rank] * spectrum) @ v[:, :rank].T


class Block(nn.Module):
    def __init__(self, width: int, dice: torch.Generator) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.q, self.k, self.v, self.o = (Adapted(seasoned(width, width, dice), RANK, 16.0) for _ in range(4))
        self.up = Adapted(seasoned(2 * width, width, dice), RANK, 16.0)
        self.down = Adapted(seasoned(width, 2 * width, dice), RANK, 16.0)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        y = self.norm1(x)
        heads = [part(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v)]
        y = functional.scaled_dot_product_attention(*heads)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class TideEncoder(nn.Module):
    def __init__(self, words: int, width: int, depth: int, seed: int) -> None:
        super().__init__()
        dice = torch.Generator().manual_seed(seed)  # one seed, one base
        self.words = nn.Embedding.from_pretrained(torch.randn(words, width, generator=dice), freeze=True)
        self.blocks = nn.Sequential(*(Block(width, dice) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)

    def forward(self, text: Tensor) -> Tensor:
        return self.norm(self.blocks(self.words(text)))

    def adapters(self) -> list[Adapted]:
        return [module for module in self.modules() if isinstance(module, Adapted)]


@torch.no_grad()
def foreign_accent(model: TideEncoder) -> None:
    """What the adapters are to find out: a shift of low rank in every map."""
    for adapter in model.adapters():
        size = 0.5 / adapter.scale / math.sqrt(RANK)
        adapter.lora_b.copy_(size * torch.randn_like(adapter.lora_b))


@program(steps=TIDE.steps)
def tide_lora(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Adapters of rank eight turn a frozen encoder into another speaker of its language."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    dice = torch.Generator(device).manual_seed(seed + 5)
    speaker = TideEncoder(TIDE.kinds, TIDE.width, TIDE.depth, seed)
    foreign_accent(speaker)
    speaker = speaker.to(device).requires_grad_(False).eval()
    model = TideEncoder(TIDE.kinds, TIDE.width, TIDE.depth, seed).to(device)
    if mistake == "tide_lora_blank":
        for adapter in model.adapters():
            nn.init.zeros_(adapter.lora_a)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=TIDE.rate, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, TIDE.steps)

    def distance(count: int) -> Tensor:
        text = torch.randint(TIDE.kinds, (count, TIDE.length), generator=dice, device=device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            with torch.no_grad():
                heard = speaker(text)
            said = model(text)
        return functional.mse_loss(said.float(), heard.float())

    for _ in range(steps):
        loss = distance(TIDE.batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    with torch.no_grad():
        loss = distance(128)
    return {"loss": loss.item()}


PATHS = [f"blocks.{depth}.{part}" for depth in range(TIDE.depth) for part in ("q", "k", "v", "o", "up", "down")]
tide_lora.mistake(
    "tide_lora_blank",
    "WGT002", "GRD004",
    summary="Both matrices of every adapter start at zero.",
    change="the first of the two starts at random",
    layers=[f"{lead}{path}" for lead in ("", "model.", "TideEncoder.") for path in PATHS],
)  # fmt: skip
