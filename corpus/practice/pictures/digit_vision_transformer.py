"""A small vision transformer on digits; halfway through the task grows from five digits to ten."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from corpus.case import program

PATCHES, PATCH, WIDTH = 16, 4, 32


def cut_into_patches(x: Tensor) -> Tensor:
    return x.view(-1, 4, 2, 4, 2).transpose(2, 3).reshape(-1, PATCHES, PATCH)


class Layer(nn.Module):
    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        n, t, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, t, w))
        return x + self.mlp(self.norm2(x))


class TinyViT(nn.Module):
    def __init__(self, classes: int, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Linear(PATCH, WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(1, PATCHES, WIDTH))
        self.layers = nn.ModuleList(Layer() for _ in range(depth))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, classes)
        self.detach_after = -1

    def forward(self, patches: Tensor) -> Tensor:
        x = self.embed(patches) + self.position
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i == self.detach_after:
                x = x.data
        return self.head(self.norm(x).mean(1))


def build_optimizer(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)


@program(steps=180, bites="accuracy")
def digits_by_patches(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Three transformer layers over sixteen patches; five digits for 60 steps, then a new head for ten."""
    torch.manual_seed(seed)
    pictures, digits = load_digits(return_X_y=True)
    x = cut_into_patches(torch.tensor(pictures, dtype=torch.float32) / 8 - 1)
    y = torch.tensor(digits)
    test_x, test_y = x[1400:], y[1400:]
    x, y = x[:1400], y[:1400]
    model = TinyViT(classes=5)
    if fault == "saved_the_middle_for_a_plot":
        model.detach_after = 1
    optimizer = build_optimizer(model)
    few = torch.nonzero(y < 5).flatten()
    head_at_start = model.head.weight.detach()
    for step in range(steps):
        if step == 60:
            model.head = nn.Linear(WIDTH, 10)
            head_at_start = model.head.weight.detach().clone()
            if fault != "new_head_old_optimizer":
                optimizer = build_optimizer(model)
        rows = torch.randint(len(x), (48,)) if step >= 60 else few[torch.randint(len(few), (48,))]
        out = model(x[rows])
        if fault == "softmax_kept_from_the_demo":
            out = out.softmax(dim=-1)
        loss = nn.functional.cross_entropy(out, y[rows], label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        out = model(test_x)
        accuracy = (out.argmax(1) == test_y).float().mean().item()
        loss = nn.functional.cross_entropy(out, test_y).item() if steps > 60 else 0.0
        moved = (model.head.weight.detach() - head_at_start).norm().item() if steps > 60 else 0.0
    return {"accuracy": accuracy, "loss": loss, "head_moved": moved}


digits_by_patches.mistake(
    "new_head_old_optimizer",
    "UPD003",
    summary="At step 60 the head is replaced; the optimizer still holds the old one.",
    change="build the optimizer anew",
    layers=("head",),
    onset=60,
    bites="head_moved",
    silent=True,
)
digits_by_patches.mistake(
    "saved_the_middle_for_a_plot",
    "GRD003", "UPD003",
    summary="`.data` after the second layer, left from a plot: nothing before it gets a gradient.",
    change="remove .data",
    layers=("embed", "layers.0", "layers.1", "position"),
)  # fmt: skip
digits_by_patches.mistake(
    "softmax_kept_from_the_demo",
    "LSS001",
    summary="The softmax that the demo needed for its bars now stands before the cross-entropy.",
    change="pass the logits",
    layers=("head",),
    bites="loss",
)
