"""Where is the bright spot as seen from the dark one? A small vision transformer on sixteen patches."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program

SIDE, PATCH, DIM, DEPTH = 16, 4, 32, 3
TOKENS = (SIDE // PATCH) ** 2


def spots(count: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    bright = torch.randint(1, SIDE - 1, (count, 2), generator=rng)
    dark = torch.randint(1, SIDE - 1, (count, 2), generator=rng)
    grid = torch.stack(torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij"))[None]

    def spot(where: Tensor) -> Tensor:
        return torch.exp(-((grid - where[:, :, None, None]) ** 2).sum(1) / 2.0)

    pictures = 2 * spot(bright) - 2 * spot(dark) + 0.1 * torch.randn(count, SIDE, SIDE, generator=rng)
    delta = bright - dark
    labels = 2 * (delta[:, 0] > 0).long() + (delta[:, 1] > 0).long()
    return pictures, labels


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.project = nn.Linear(dim, dim)
        self.seen = torch.zeros(0)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        weights = (q @ k.transpose(-2, -1) / math.sqrt(d / self.heads)).softmax(-1)
        self.seen = weights.detach()
        return self.project((weights @ v).transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, dim: int, scale: float | None = None, drop: float = 0.0) -> None:
        super().__init__()
        self.norm_a, self.attn = nn.LayerNorm(dim), Attention(dim)
        self.norm_m, self.mlp = nn.LayerNorm(dim), nn.Sequential(nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, dim))
        self.scale = None if scale is None else nn.Parameter(torch.full((dim,), scale))
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.rand(()) < self.drop:
            return x
        gain = 1.0 if self.scale is None else self.scale
        x = x + gain * self.attn(self.norm_a(x))
        return x + gain * self.mlp(self.norm_m(x))


class PatchTransformer(nn.Module):
    def __init__(self, scale: float | None = None, drop: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Linear(PATCH * PATCH, DIM)
        self.cls = nn.Parameter(0.02 * torch.randn(1, 1, DIM))
        self.pos = nn.Parameter(0.2 * torch.randn(1, TOKENS + 1, DIM))
        self.blocks = nn.ModuleList(Block(DIM, scale, drop * i) for i in range(DEPTH))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, 4)
        self.middle = nn.Linear(DIM, 4)

    def features(self, pictures: Tensor) -> list[Tensor]:
        patches = pictures.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).reshape(len(pictures), TOKENS, -1)
        x = torch.cat([self.cls.expand(len(pictures), -1, -1), self.embed(patches)], 1) + self.pos
        states = []
        for block in self.blocks:
            x = block(x)
            states.append(x[:, 0])
        return states

    def forward(self, pictures: Tensor) -> Tensor:
        return self.head(self.norm(self.features(pictures)[-1]))


def score(model: PatchTransformer, seed: int) -> float:
    pictures, labels = spots(300, seed + 500)
    model.eval()
    with torch.no_grad():
        return (model(pictures).argmax(1) == labels).float().mean().item()


@program(steps=140, bites="accuracy")
def spot_transformer(steps: int, seed: int, fault: str) -> dict[str, float]:
    """AdamW with a linear warm-up and a cosine down to a tenth."""
    torch.manual_seed(seed)
    pictures, labels = spots(1200, seed)
    model = PatchTransformer()
    del model.middle
    second = cast(Block, model.blocks[1]).attn
    if fault == "second_attention_too_sharp":
        with torch.no_grad():
            second.query.weight *= 20
            second.key.weight *= 20
    parameters = list(model.parameters())
    if fault == "tokens_left_out":
        parameters = [p for part in (model.embed, model.blocks, model.norm, model.head) for p in part.parameters()]
    decay = 12.0 if fault == "decay_of_twelve" else 0.05
    peak = 0.1 if fault == "rate_of_the_convnet" else 4e-3
    optimizer = torch.optim.AdamW(parameters, lr=peak, weight_decay=decay)
    warm_up = 1 if fault == "rate_of_the_convnet" else 10

    def factor(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    tokens = torch.cat([model.cls.detach().flatten(), model.pos.detach().flatten()])
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    moved = (torch.cat([model.cls.detach().flatten(), model.pos.detach().flatten()]) - tokens).norm().item()
    return {
        "loss": loss.item(),
        "accuracy": score(model, seed),
        "moved": moved,
        "peak": second.seen.amax(-1).mean().item(),
    }


spot_transformer.mistake(
    "second_attention_too_sharp",
    "ACT004", "WGT003",
    summary="Queries and keys of the second block start twenty times too large: its attention is a hard choice.",
    change="the usual initialisation",
    layers=("blocks.1.attn",),
    bites="peak",
    silent=True,
)  # fmt: skip
spot_transformer.mistake(
    "tokens_left_out",
    "UPD003",
    summary="The optimizer gets the parameters of all parts, but class token and positions belong to none.",
    change="optimise model.parameters()",
    layers=("cls", "pos"),
    bites="moved",
    silent=True,
)
spot_transformer.mistake(
    "decay_of_twelve",
    "OPT008", "WGT005",
    summary="Weight decay of 12 in AdamW: the weights lose four percent in each step.",
    change="weight decay 0.05",
)  # fmt: skip
spot_transformer.mistake(
    "rate_of_the_convnet",
    "OPT007", "UPD001", "OPT001", "ACT004", "OPT003",
    summary="The rate of a convolutional network under SGD, without warm-up, given to AdamW.",
    change="4e-3 after a warm-up",
)  # fmt: skip


@program(steps=130, bites="accuracy", adversarial="branches whose gradient is zero at first are dead")
def spot_layer_scale(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Every branch starts with a gain of zero and grows when it helps."""
    torch.manual_seed(seed)
    pictures, labels = spots(1200, seed)
    model = PatchTransformer(scale=0.0)
    del model.middle
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": score(model, seed)}


@program(steps=130, bites="accuracy", adversarial="a block without a gradient is cut off")
def spot_drop_path(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Stochastic depth skips whole blocks for a step, the last one a quarter of the time."""
    torch.manual_seed(seed)
    pictures, labels = spots(1200, seed)
    model = PatchTransformer(drop=0.12)
    del model.middle
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": score(model, seed)}


@program(steps=130, bites="accuracy", adversarial="a head without a gradient in most steps is not connected")
def spot_early_exit(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """A second head after the first block is trained in every fourth step only."""
    torch.manual_seed(seed)
    pictures, labels = spots(1200, seed)
    model = PatchTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    loss = torch.tensor(0.0)
    for step in range(steps):
        rows = torch.randint(len(pictures), (64,))
        states = model.features(pictures[rows])
        loss = functional.cross_entropy(model.head(model.norm(states[-1])), labels[rows])
        if step % 4 == 0:
            loss = loss + 0.3 * functional.cross_entropy(model.middle(states[0]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": score(model, seed)}
