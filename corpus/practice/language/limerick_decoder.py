"""Limericks of made-up syllables, which keep a rhyme and a metre: a small decoder with rotary positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from corpus.case import program

SYLLABLES, LENGTH, DIM, HEADS = 30, 25, 32, 2


def verses(count: int, rng: torch.Generator) -> Tensor:
    """Five lines of five syllables; the last ones rhyme a a b b a, the others walk about in steps."""
    step = torch.randint(1, 4, (count, LENGTH), generator=rng)
    syllables = (torch.randint(20, (count, 1), generator=rng) + step.cumsum(1)) % 20
    a = torch.randint(20, 25, (count,), generator=rng)
    b = torch.randint(25, 30, (count,), generator=rng)
    for line, rhyme in enumerate([a, a, b, b, a]):
        syllables[:, 5 * line + 4] = rhyme
    return syllables


def rotate(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * 0.1 ** (torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(DIM, DIM, bias=False)
        self.key = nn.Linear(DIM, DIM, bias=False)
        self.value = nn.Linear(DIM, DIM, bias=False)
        self.out = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (f(x).view(batch, length, HEADS, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = rotate(q) @ rotate(k).transpose(-1, -2) / q.shape[-1] ** 0.5
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


class Block(nn.Module):
    def __init__(self, drop: float) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.attention = Attention()
        self.gate, self.up, self.down = nn.Linear(DIM, 64), nn.Linear(DIM, 64), nn.Linear(64, DIM)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.before_attention(x)))
        h = self.before_mlp(x)
        return x + self.drop(self.down(functional.silu(self.gate(h)) * self.up(h)))


class Poet(nn.Module):
    def __init__(self, drop: float, keep_random_state: bool) -> None:
        super().__init__()
        self.keep_random_state = keep_random_state
        self.embedding = nn.Embedding(SYLLABLES, DIM)
        self.blocks = nn.ModuleList(Block(drop) for _ in range(2))
        self.norm = nn.RMSNorm(DIM)
        self.head = nn.Linear(DIM, SYLLABLES)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embedding(tokens)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=False, preserve_rng_state=self.keep_random_state)
        return self.head(self.norm(h))


@program(steps=140)
def limericks(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A decoder of two blocks, AdamW, a short warm-up, gradients clipped at one."""
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    drawn_twice = fault == "limericks_masks_drawn_twice"
    model = Poet(drop=0.25, keep_random_state=not drawn_twice)
    if fault == "limericks_second_block_stares":
        with torch.no_grad():
            for name, p in model.blocks[1].named_parameters():
                if "query" in name or "key" in name:
                    p.mul_(16)
    head = list(model.head.parameters())
    body = [p for name, p in model.named_parameters() if not name.startswith("head")]
    head_rate = 100.0 if fault == "limericks_head_runs_away" else 1.0
    optimizer = torch.optim.AdamW([{"params": body}, {"params": head, "times": head_rate}], lr=5e-3, weight_decay=0.01)
    for step in range(steps):
        rate = 5e-3 * min(1.0, (step + 1) / 15)
        if fault == "limericks_rate_of_the_second_stage" and step >= 80:
            rate *= 60
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("times", 1.0)
        tokens = verses(16, rng)
        if fault == "limericks_reads_the_answer":
            inputs, targets = tokens, tokens
        else:
            inputs, targets = tokens[:, :-1], tokens[:, 1:]
        logits = model(inputs)
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        if fault == "limericks_normaliser_rewarded":
            loss = loss - 0.02 * logits.logsumexp(-1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    with torch.no_grad():
        tokens = verses(64, torch.Generator().manual_seed(9000 + seed))
        logits = model(tokens[:, :-1])
        held_out = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item()
    return {"loss": min(held_out, 1e6), "normaliser": min(logits.logsumexp(-1).mean().item(), 1e6)}


limericks.mistake(
    "limericks_second_block_stares",
    "ACT004", "WGT003",
    summary="Queries and keys of the second block start sixteen times too large: every position looks at one other.",
    change="the usual start",
    layers=("blocks.1.attention",),
)  # fmt: skip
limericks.mistake(
    "limericks_reads_the_answer",
    "DAT004", "OPT006", "LSS003",
    summary="The targets are not shifted: the model is asked for the syllable it has just read.",
    change="shift the targets by one",
)  # fmt: skip
limericks.mistake(
    "limericks_normaliser_rewarded",
    "LSS003", "WGT001", "GRD009",
    summary="The penalty on the logarithm of the normaliser has the wrong sign: logits grow without end.",
    change="add the penalty",
)  # fmt: skip
limericks.mistake(
    "limericks_rate_of_the_second_stage",
    "OPT007", "UPD001", "OPT003", "OPT001",
    summary="At step 80 a second stage begins with sixty times the rate.",
    change="keep the rate",
    onset=80,
)  # fmt: skip
limericks.mistake(
    "limericks_masks_drawn_twice",
    "GRD008", "MOD001",
    summary="Checkpointing does not keep the random state: backward sees other dropout masks than forward did.",
    change="preserve_rng_state=True",
    layers=("blocks",),
)  # fmt: skip
limericks.mistake(
    "limericks_head_runs_away",
    "UPD001", "OPT007", "WGT001",
    summary="The head has a rate a hundred times that of the rest: its logits run away.",
    change="one rate for all",
    layers=("head",),
)  # fmt: skip
