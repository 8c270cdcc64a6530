"""A window of sixteen panes; a small vision transformer says which colour most of them have."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from corpus.case import program

PANES, PIXELS, COLOURS = 16, 12, 4


def windows(count: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """One colour has a greater chance than the others; every pane is one colour's pattern and noise."""
    patterns = torch.randn(COLOURS, PIXELS, generator=torch.Generator().manual_seed(5))
    colour = torch.randint(COLOURS, (count,), generator=g)
    chance = 0.17 + 0.32 * nn.functional.one_hot(colour, COLOURS)
    panes = torch.multinomial(chance, PANES, replacement=True, generator=g)
    pictures = patterns[panes] + 0.5 * torch.randn(count, PANES, PIXELS, generator=g)
    votes = nn.functional.one_hot(panes, COLOURS).sum(1) + 0.1 * nn.functional.one_hot(colour, COLOURS)
    return pictures, votes.argmax(1)


class SelfAttention(nn.Module):
    def __init__(self, dim: int, heads: int, cosine_scale: float = 0.0) -> None:
        super().__init__()
        self.heads, self.cosine_scale = heads, cosine_scale
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.project = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = (f(x).view(n, t, self.heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        if self.cosine_scale:
            q, k = nn.functional.normalize(q, dim=-1), nn.functional.normalize(k, dim=-1)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, scale=self.cosine_scale)
        else:
            mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.project(mixed.transpose(1, 2).reshape(n, t, d))


class Layer(nn.Module):
    def __init__(self, dim: int, cosine_scale: float, dropout: float) -> None:
        super().__init__()
        self.ln_a, self.ln_b = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = SelfAttention(dim, 4, cosine_scale)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * dim, dim))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attn(self.ln_a(x)))
        return x + self.drop(self.mlp(self.ln_b(x)))


class WindowViT(nn.Module):
    def __init__(self, dim: int = 32, cosine_scale: float = 0.0, dropout: float = 0.0, redo: bool = False) -> None:
        super().__init__()
        self.embed = nn.Linear(PIXELS, dim)
        self.cls = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        self.place = nn.Parameter(0.02 * torch.randn(1, PANES + 1, dim))
        self.layers = nn.ModuleList(Layer(dim, cosine_scale, dropout) for _ in range(2))
        self.ln = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, COLOURS)
        self.redo = redo

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.cls.expand(len(x), -1, -1), self.embed(x)], 1) + self.place
        for layer in self.layers:
            if self.redo and self.training:
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return self.head(self.ln(x[:, 0]))


def seen_right(model: nn.Module, seed: int) -> float:
    x, y = windows(500, torch.Generator().manual_seed(seed + 8000))
    model.eval()
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


@program(steps=160, bites="accuracy")
def glass_window(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The class token looks at all panes; attention is by cosines with a fixed scale; rates are set by stages."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = WindowViT(cosine_scale=300.0 if fault == "glass_scale_meant_for_another_code" else 8.0)
    looking = [p for name, p in model.named_parameters() if ".attn." in name]
    others = [p for name, p in model.named_parameters() if ".attn." not in name]
    optimizer = torch.optim.AdamW([{"params": others}, {"params": looking}], lr=3e-3, weight_decay=0.01)
    second_stage = {"others": 1.5e-3, "looking": 1.0 if fault == "glass_stage_two_too_hot" else 2e-3}
    loss = torch.zeros(())
    for step in range(steps):
        if step == 100:
            optimizer.param_groups[0]["lr"] = second_stage["others"]
            optimizer.param_groups[1]["lr"] = second_stage["looking"]
        x, y = windows(48, g)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": seen_right(model, seed)}


glass_window.mistake(
    "glass_scale_meant_for_another_code",
    "ACT004",
    summary="Cosines are multiplied by three hundred before the softmax: every token looks at one pane.",
    change="a scale of eight",
    layers=("layers.0.attn", "layers.1.attn"),
)
glass_window.mistake(
    "glass_stage_two_too_hot",
    "UPD001", "OPT007", "ACT004", "WGT001", "OPT003", "OPT001",
    summary="From step 100 the attention layers have a rate of 1 in place of 0.002.",
    change="lr=2e-3",
    layers=("layers.0.attn", "layers.1.attn"),
    onset=100,
)  # fmt: skip


@program(steps=170, bites="accuracy", adversarial="a layer whose forward pass runs twice in a step")
def glass_on_a_small_card(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Layers with dropout are computed twice to save memory; the second time with the same masks."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = WindowViT(dropout=0.3, redo=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    loss = torch.zeros(())
    for _ in range(steps):
        x, y = windows(48, g)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return {"loss": loss.item(), "accuracy": seen_right(model, seed)}


@program(steps=160, bites="accuracy", adversarial="a parameter that starts at zero and a branch without gradient")
def glass_branches_from_nothing(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Both branches of every layer end in a projection that starts at zero; bfloat16 where autocast likes it."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = WindowViT()
    for name, p in model.named_parameters():
        if name.endswith(("project.weight", "mlp.3.weight", "project.bias", "mlp.3.bias")):
            nn.init.zeros_(p)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=20)
    loss = torch.zeros(())
    for _ in range(steps):
        x, y = windows(48, g)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warmup.step()
    return {"loss": loss.item(), "accuracy": seen_right(model, seed)}
