"""An MLP-mixer that looks for the odd column out, with and without its way around."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

TOKENS, CHANNELS = 9, 20


def puzzles(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Nine tokens that follow one direction, but for one token: which?"""
    direction = torch.randn(n, 1, CHANNELS, generator=generator)
    tokens = direction + 0.5 * torch.randn(n, TOKENS, CHANNELS, generator=generator)
    odd = torch.randint(TOKENS, (n,), generator=generator)
    tokens[torch.arange(n), odd] = torch.randn(n, CHANNELS, generator=generator) - 0.5 * direction.squeeze(1)
    return tokens, odd


class Blend(nn.Module):
    """Mixes tokens, then channels."""

    def __init__(self, skip: bool, dropout: float) -> None:
        super().__init__()
        self.skip = skip
        self.norm_tokens = nn.LayerNorm(CHANNELS) if skip else nn.Identity()
        self.tokens = nn.Sequential(nn.Linear(TOKENS, 24), nn.GELU(), nn.Dropout(dropout), nn.Linear(24, TOKENS))
        self.norm_channels = nn.LayerNorm(CHANNELS) if skip else nn.Identity()
        self.channels = nn.Sequential(nn.Linear(CHANNELS, 40), nn.GELU(), nn.Dropout(dropout), nn.Linear(40, CHANNELS))

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.tokens(self.norm_tokens(x).transpose(1, 2)).transpose(1, 2)
        x = x + mixed if self.skip else mixed
        mixed = self.channels(self.norm_channels(x))
        return x + mixed if self.skip else mixed


class Blender(nn.Module):
    def __init__(self, depth: int, skip: bool = True, dropout: float = 0.1) -> None:
        super().__init__()
        self.blends = nn.Sequential(*(Blend(skip, dropout) for _ in range(depth)))
        self.last = nn.LayerNorm(CHANNELS)
        self.head = nn.Linear(CHANNELS, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.blends(x))).squeeze(-1)


@program(steps=180, bites="accuracy")
def odd_one_out(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Six mixing blocks with layer norm and residual paths; AdamW, warm-up, gradient clipping."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed + 77)
    x, y = puzzles(3000, g)
    test_x, test_y = puzzles(500, g)
    model = Blender(depth=6, skip=fault != "blocks_without_a_way_around")
    if fault == "eval_from_the_checkpoint_script":
        model.eval()
    with_dropout = 0
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    ramp = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, total_iters=15)
    for _ in range(steps):
        rows = torch.randint(len(x), (48,), generator=g)
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        opt.step()
        ramp.step()
        with_dropout += model.training
    model.eval()
    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    return {"accuracy": accuracy, "share_with_dropout": with_dropout / max(steps, 1)}


odd_one_out.mistake(
    "blocks_without_a_way_around",
    "GRD001", "WGT003", "OPT005",
    summary="Six mixing blocks without residual path and norm: the signal shrinks at every one of 24 matrices.",
    change="residual paths and layer norm",
)  # fmt: skip
odd_one_out.mistake(
    "eval_from_the_checkpoint_script",
    "MOD001",
    summary="model.eval() came along from the script that loads checkpoints: dropout is off for the whole training.",
    change="model.train()",
    layers=("blends",),
    bites="share_with_dropout",
    silent=True,
)
