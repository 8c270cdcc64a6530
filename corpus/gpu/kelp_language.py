"""A small GPT reads texts whose topic says how letters follow each other; bf16, fused AdamW."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program
from corpus.gpu.sizes import KELP


class CausalAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.focus = 1.0
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q * self.focus, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = CausalAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.fc = nn.Linear(width, 4 * width)
        self.proj = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.proj(functional.gelu(self.fc(self.norm2(x))))


class KelpGPT(nn.Module):
    def __init__(self, letters: int, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.token = nn.Embedding(letters, width)
        self.place = nn.Embedding(length, width)
        self.stack = [Block(width, max(2, width // 64)) for _ in range(depth)]
        self.blocks = nn.ModuleList(self.stack)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, letters, bias=False)
        self.apply(self._init)
        for block in self.stack:
            nn.init.normal_(block.proj.weight, std=0.4 / math.sqrt(2 * depth * width))

    def _init(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.4 / math.sqrt(self.head.in_features))
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, letters: Tensor) -> Tensor:
        x = self.token(letters) + self.place.weight[: letters.shape[1]]
        for block in self.stack:
            x = block(x)
        return self.head(self.norm(x))


class Library:
    """Texts with a topic: a letter may be followed by four letters, and the topic says which of them is likely."""

    def __init__(self, letters: int, count: int, length: int, seed: int, device: torch.device) -> None:
        self.dice = torch.Generator(device).manual_seed(seed)
        families = torch.arange(4, device=device)
        followers = 4 * torch.randint(letters // 4, (letters, 4), generator=self.dice, device=device) + families
        topics = torch.randint(4, (count, 1), generator=self.dice, device=device)
        odds = torch.tensor([0.7, 0.1, 0.1, 0.1], device=device)
        picks = torch.multinomial(odds, count * length, replacement=True, generator=self.dice).view(count, length)
        picks = (picks + topics) % 4
        texts = torch.randint(letters, (count, length), generator=self.dice, device=device)
        for at in range(1, length):
            texts[:, at] = followers[texts[:, at - 1], picks[:, at]]
        self.letters = letters
        self.held_out, self.texts = texts[: count // 16], texts[count // 16 :]

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(self.texts), (size,), generator=self.dice, device=self.texts.device)
        return self.texts[rows, :-1], self.texts[rows, 1:]

    def noise_like(self, text: Tensor) -> Tensor:
        return torch.randint(self.letters, text.shape, generator=self.dice, device=text.device)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


@torch.no_grad()
def held_out_loss(model: KelpGPT, library: Library) -> float:
    text = library.held_out[:64]
    with torch.autocast(text.device.type, dtype=torch.bfloat16):
        loss = cross_entropy(model(text[:, :-1]), text[:, 1:]).item()
    return loss if math.isfinite(loss) else 20.0


@program(steps=KELP.steps)
def kelp_gpt(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """A small GPT learns a language in which the topic of a text says how letters follow each other."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    library = Library(KELP.kinds, 64 * KELP.length, KELP.length + 1, seed, device)
    model = KelpGPT(KELP.kinds, KELP.length, KELP.width, KELP.depth).to(device)

    peak, warm_up = KELP.rate, max(1, KELP.steps // 20)
    if mistake == "kelp_gpt_hurried":
        peak, warm_up = 40 * peak, 1
    decay = [p for p in model.parameters() if p.ndim >= 2]
    no_decay = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95), fused=device.type == "cuda")

    def rate(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, (step - warm_up) / max(1, KELP.steps - warm_up))))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    after = math.nan
    for step in range(steps):
        inputs, targets = library.batch(KELP.batch)
        if mistake == "kelp_gpt_garbled" and KELP.late <= step < KELP.late + 40:
            inputs, targets = library.noise_like(inputs), library.noise_like(targets)
        if mistake == "kelp_gpt_sharpened" and step >= KELP.late:
            for block in model.stack:
                block.attn.focus *= 1.03
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = cross_entropy(model(inputs), targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step == KELP.late + 45:
            after = held_out_loss(model, library)
    final = held_out_loss(model, library)
    return {"loss": final, "loss_after": final if math.isnan(after) else after}


kelp_gpt.mistake(
    "kelp_gpt_hurried",
    "OPT007", "UPD001",
    summary="The rate is forty times too high, and there is no warm-up.",
    change="a fortieth of the rate, reached after a warm-up",
)  # fmt: skip
kelp_gpt.mistake(
    "kelp_gpt_sharpened",
    "ACT004",
    summary="From a late step on attention is sharpened a little more at every step, without an end.",
    change="attention keeps its scale",
    layers=[f"blocks.{depth}.attn" for depth in range(KELP.depth)],
    onset=KELP.late,
)
kelp_gpt.mistake(
    "kelp_gpt_garbled",
    "DAT002", "OPT003", "GRD006",
    summary="For forty steps in the middle the reader delivers noise instead of text.",
    change="text throughout",
    onset=KELP.late,
    bites="loss_after",
)  # fmt: skip
