"""A language model whose layers send every token to two of eight experts, on texts in several dialects."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program
from corpus.gpu.sizes import HARVEST

EXPERTS = 8
CHOSEN = 2


class Expert(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.up(x)))


class MixtureOfExperts(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, EXPERTS, bias=False)
        self.members = [Expert(width, hidden) for _ in range(EXPERTS)]
        self.experts = nn.ModuleList(self.members)
        self.imbalance = torch.zeros(())
        self.load = torch.zeros(EXPERTS)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        odds = self.router(tokens).float().softmax(-1)
        gates, chosen = odds.topk(CHOSEN, dim=-1)
        gates = gates / gates.sum(-1, keepdim=True)
        mixed = torch.zeros_like(tokens)
        for index, expert in enumerate(self.members):
            rows, slots = (chosen == index).nonzero(as_tuple=True)
            share = gates[rows, slots].unsqueeze(-1).to(tokens.dtype)
            mixed = mixed.index_add(0, rows, (share * expert(tokens[rows])).to(tokens.dtype))
        self.load = functional.one_hot(chosen, EXPERTS).float().mean((0, 1)).detach()
        self.imbalance = EXPERTS * (self.load * odds.mean(0)).sum()
        return mixed.view_as(x)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.moe = MixtureOfExperts(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.moe(self.norm2(x))


class HarvestLM(nn.Module):
    def __init__(self, letters: int, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.token = nn.Embedding(letters + EXPERTS, width)
        self.place = nn.Parameter(0.1 * torch.randn(length, width))
        self.rows = [Layer(width, max(2, width // 64), max(4, width // 4)) for _ in range(depth)]
        self.layers = nn.ModuleList(self.rows)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, letters)

    def forward(self, text: Tensor) -> Tensor:
        x = self.token(text) + self.place[: text.shape[1]]
        for layer in self.rows:
            x = layer(x)
        return self.head(self.norm(x))

    def imbalance(self) -> Tensor:
        return torch.stack([layer.moe.imbalance for layer in self.rows]).mean()

    def loads(self) -> Tensor:
        return torch.stack([layer.moe.load for layer in self.rows])


class Dialects:
    """Eight dialects of one alphabet; a text begins with the name of its dialect."""

    def __init__(self, letters: int, seed: int, device: torch.device) -> None:
        self.dice = torch.Generator(device).manual_seed(seed)
        self.letters = letters
        self.next = torch.randint(letters, (EXPERTS, letters), generator=self.dice, device=device)

    def texts(self, count: int, length: int) -> Tensor:
        device = self.next.device
        dialect = torch.randint(EXPERTS, (count,), generator=self.dice, device=device)
        texts = torch.randint(self.letters, (count, length), generator=self.dice, device=device)
        slips = torch.rand(count, length, generator=self.dice, device=device) < 0.15
        for at in range(1, length):
            texts[:, at] = torch.where(slips[:, at], texts[:, at], self.next[dialect, texts[:, at - 1]])
        texts[:, 0] = self.letters + dialect
        return texts


@program(steps=HARVEST.steps)
def harvest_moe(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """A language model with two of eight experts for each token reads texts in eight dialects."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    dialects = Dialects(HARVEST.kinds, seed, device)
    texts = dialects.texts(16 * HARVEST.steps, HARVEST.length + 1)
    held_out = dialects.texts(128, HARVEST.length + 1)
    model = HarvestLM(HARVEST.kinds, HARVEST.length, HARVEST.width, HARVEST.depth).to(device)
    if mistake == "harvest_moe_enlarged":
        for layer in model.rows:
            for expert in layer.moe.members[EXPERTS // 2 :]:
                nn.init.zeros_(expert.up.weight)
                nn.init.zeros_(expert.down.weight)
    optimizer = torch.optim.AdamW(model.parameters(), lr=HARVEST.rate, betas=(0.9, 0.98), weight_decay=0.01)

    def predict(rows: Tensor) -> Tensor:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(rows[:, :-1])
        # The first letter after the name of the dialect is chance.
        return functional.cross_entropy(logits[:, 1:].flatten(0, 1).float(), rows[:, 2:].flatten())

    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = HARVEST.rate * min(1.0, (step + 1) / (HARVEST.steps // 20))
        rows = texts[torch.randint(len(texts), (HARVEST.batch,), generator=dialects.dice, device=device)]
        loss = predict(rows)
        share = 1 - step / HARVEST.late
        weight = 0.2 * (share if mistake == "harvest_moe_annealed" else max(share, 0.2))
        optimizer.zero_grad(set_to_none=True)
        (loss + weight * model.imbalance()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    with torch.no_grad():
        loss = predict(held_out).item()
    busy = (model.loads() > 0.25 / EXPERTS).float().mean().item()
    experts = [expert for layer in model.rows for expert in layer.moe.members]
    taught = sum(bool(expert.down.weight.any()) for expert in experts) / len(experts)
    return {"loss": loss if math.isfinite(loss) else 20.0, "busy": busy, "taught": taught}


harvest_moe.mistake(
    "harvest_moe_annealed",
    "ACT005", "GRD004", "GRD003",
    summary="The weight of the balance term falls past zero: from a late step on it rewards a lopsided router.",
    change="the weight stays at a fifth of what it was",
    layers=[f"layers.{depth}.moe" for depth in range(HARVEST.depth)],
    onset=HARVEST.late,
    bites="busy",
    silent=True,
)  # fmt: skip
harvest_moe.mistake(
    "harvest_moe_enlarged",
    "WGT002", "GRD004",
    summary="Half of the experts are new, and both of their matrices start at zero.",
    change="all experts start at random",
    layers=[f"layers.{d}.moe.experts.{e}" for d in range(HARVEST.depth) for e in range(EXPERTS // 2, EXPERTS)],
    bites="taught",
    silent=True,
)  # fmt: skip
