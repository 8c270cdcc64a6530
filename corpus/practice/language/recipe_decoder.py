"""Small decoders that write recipes: the next word follows from the word two places before it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program

WORDS, LENGTH, WIDTH = 32, 20, 48


class Cookbook:
    """An endless supply of recipes; every kitchen (seed) has its own habits."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.habit = torch.randperm(WORDS, generator=self.generator)

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        words = torch.randint(WORDS, (count, LENGTH + 1), generator=self.generator)
        surprise = torch.rand(count, LENGTH + 1, generator=self.generator) < 0.1
        for at in range(2, LENGTH + 1):
            words[:, at] = torch.where(surprise[:, at], words[:, at], self.habit[words[:, at - 2]])
        return words[:, :-1], words[:, 1:]


class CausalAttention(nn.Module):
    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, WIDTH))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = CausalAttention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Cook(nn.Module):
    def __init__(self, tie: bool = True, blocks: int = 2) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        nn.init.normal_(self.tok.weight, std=0.1)
        nn.init.normal_(self.pos.weight, std=0.1)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tie:
            self.head.weight = self.tok.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def held_out(model: nn.Module, book: Cookbook) -> float:
    model.eval()
    with torch.no_grad():
        x, y = book.draw(128)
        loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).item()
    model.train()
    return loss if math.isfinite(loss) else 1e6


@program(steps=150, bites="loss")
def recipe_writer(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A tied two-block decoder, AdamW with warm-up and cosine."""
    torch.manual_seed(seed)
    book = Cookbook(seed)
    model = Cook()
    if fault == "recipe_restored_by_assignment":
        saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(saved, assign=True)  # the head is a tensor of its own from here on
    if fault == "recipe_second_block_stares":
        for projection in ("q", "k"):
            nn.init.normal_(model.get_parameter(f"blocks.1.attn.{projection}.weight"), std=4.0)  # meant: 4 / WIDTH
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda t: min((t + 1) / 20, 0.55 + 0.45 * math.cos(math.pi * min(t / max(steps, 1), 1.0)))
    )
    for _ in range(steps):
        x, y = book.draw(24)
        loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    apart = (model.head.weight - model.tok.weight).norm().item()
    return {"loss": held_out(model, book), "apart": apart}


recipe_writer.mistake(
    "recipe_restored_by_assignment",
    "WGT006",
    summary="A checkpoint is loaded with assign=True: head and embedding were one tensor and are two since then.",
    change="tie again after loading",
    layers=("head", "tok"),
    bites="apart",
    silent=True,
)
recipe_writer.mistake(
    "recipe_second_block_stares",
    "ACT004", "WGT003",
    summary="Queries and keys of the second block are drawn fifty times too wide: one word gets all attention.",
    change="draw them with 4 / WIDTH",
    layers=("blocks.1.attn",),
)  # fmt: skip


@program(steps=150, bites="loss")
def menu_writer(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The decoder with a head of its own, three blocks, Adam at a bold rate after a warm-up."""
    torch.manual_seed(seed)
    book = Cookbook(1000 + seed)
    model = Cook(tie=False, blocks=3)
    body = [p for name, p in model.named_parameters() if not name.startswith("head.")]
    head_lr = 1.0 if fault == "menu_head_rate_of_one" else 6e-3
    optimizer = torch.optim.Adam(
        [{"params": body, "lr": 6e-3}, {"params": model.head.parameters(), "lr": head_lr}], betas=(0.9, 0.98)
    )
    top = [group["lr"] for group in optimizer.param_groups]
    for step in range(steps):
        warm = min(1.0, (step + 1) / 40)
        if fault == "menu_served_cold":
            warm = 12.0  # the rate of the large-batch run, and nobody warmed up
        for group, lr in zip(optimizer.param_groups, top, strict=True):
            group["lr"] = lr * warm
        x, y = book.draw(24)
        logits = model(x)
        loss = functional.cross_entropy(logits.view(-1, WORDS), y.reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return {"loss": held_out(model, book)}


menu_writer.mistake(
    "menu_served_cold",
    "OPT007", "UPD001", "OPT003", "OPT001", "GRD006", "OPT005",
    summary="The rate of a large-batch run, from the first step on and without a warm-up.",
    change="warm up over 40 steps to 6e-3",
)  # fmt: skip
menu_writer.mistake(
    "menu_head_rate_of_one",
    "UPD001", "OPT007", "WGT001", "OPT001",
    summary="The head's parameter group has a rate of 1.0: its scores run away.",
    change="give the head the rate of the others",
    layers=("head",),
)  # fmt: skip


@program(steps=140, adversarial="a large gradient norm means exploding: the loss is a sum over all words")
def recipe_summed(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The loss summed over every word of the batch; Adam does not mind."""
    torch.manual_seed(seed)
    book = Cookbook(2000 + seed)
    model = Cook(tie=True, blocks=1)
    optimizer = torch.optim.NAdam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        x, y = book.draw(24)
        loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": held_out(model, book)}


@program(
    steps=150, adversarial="a jump of the loss is a bad batch or a bad rate: a new kitchen is announced at step 90"
)
def recipe_moves_house(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Trained on one kitchen, then taken to another on purpose."""
    torch.manual_seed(seed)
    home, away = Cookbook(3000 + seed), Cookbook(4000 + seed)
    model = Cook(tie=False, blocks=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    for step in range(steps):
        x, y = home.draw(24) if step < 90 else away.draw(24)
        loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": held_out(model, away)}


@program(steps=140)
def recipe_smoothed(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Label smoothing, a z-loss and tied weights under bfloat16 autocast."""
    torch.manual_seed(seed)
    book = Cookbook(5000 + seed)
    model = Cook()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    for _ in range(steps):
        x, y = book.draw(16)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(x)
        logits = logits.float().flatten(0, 1)
        loss = functional.cross_entropy(logits, y.flatten(), label_smoothing=0.05)
        loss = loss + 1e-4 * logits.logsumexp(-1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return {"loss": held_out(model, book)}
