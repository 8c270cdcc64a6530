"""A line of teletype text, letter by letter: a small transformer whose embedding is also its output layer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import program

LETTERS, CONTEXT, BATCH = 20, 24, 16


def make_tape(length: int, seed: int) -> Tensor:
    """Words of a fixed vocabulary of thirty, each followed by one of four others, a blank between them."""
    g = torch.Generator().manual_seed(77)
    words = [torch.randint(1, LETTERS, (int(n),), generator=g) for n in torch.randint(2, 6, (30,), generator=g)]
    follow = torch.randint(30, (30, 4), generator=g)
    g = torch.Generator().manual_seed(seed)
    word, pieces, total = 0, [], 0
    while total < length:
        pieces += [words[word], torch.zeros(1, dtype=torch.long)]
        total += len(words[word]) + 1
        word = int(follow[word, int(torch.randint(4, (), generator=g))])
    return torch.cat(pieces)[:length]


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        out = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(out.transpose(1, 2).reshape(n, t, c))


class Block(nn.Module):
    def __init__(self, dim: int, post: bool) -> None:
        super().__init__()
        self.post = post
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, 4)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        if self.post:
            x = self.ln1(x + self.attn(x))
            return self.ln2(x + self.mlp(x))
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Teletype(nn.Module):
    def __init__(self, dim: int = 48, depth: int = 2, post: bool = False, tied: str = "tied") -> None:
        super().__init__()
        self.emb = nn.Embedding(LETTERS, dim)
        nn.init.normal_(self.emb.weight, std=1 / math.sqrt(dim))
        self.pos = nn.Parameter(torch.randn(CONTEXT, dim) / math.sqrt(dim))
        self.blocks = nn.ModuleList(Block(dim, post) for _ in range(depth))
        self.norm = nn.Identity() if post else nn.LayerNorm(dim)
        self.head = nn.Linear(dim, LETTERS, bias=False)
        if tied == "tied":
            self.head.weight = self.emb.weight
        elif tied == "cloned":  # "so that deepcopy works"
            self.head.weight = nn.Parameter(self.emb.weight.detach().clone())

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids) + self.pos[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def draw(tape: Tensor, count: int = BATCH) -> tuple[Tensor, Tensor]:
    start = torch.randint(len(tape) - CONTEXT - 1, (count, 1))
    window = tape[start + torch.arange(CONTEXT + 1)]
    return window[:, :-1], window[:, 1:]


@torch.no_grad()
def held_out(model: nn.Module, seed: int) -> float:
    ids, nxt = draw(make_tape(3000, seed + 9000), 64)
    value = fn.cross_entropy(model(ids).flatten(0, 1), nxt.flatten()).item()
    return value if math.isfinite(value) else 1e6


def warm_then_cosine(step: int, warm: int, total: int) -> float:
    if step < warm:
        return (step + 1) / warm
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))


@program(steps=170, bites="held_out")
def teletype(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two pre-norm blocks with tied embeddings, AdamW, warm-up, cosine and clipping."""
    torch.manual_seed(seed)
    tape = make_tape(6000, seed)
    untied = fault in ("tape_tie_is_a_copy", "tape_copy_left_out_as_tied")
    model = Teletype(tied="cloned" if untied else "tied")
    chosen = [p for n, p in model.named_parameters() if fault != "tape_copy_left_out_as_tied" or n != "emb.weight"]
    opt = torch.optim.AdamW(chosen, lr=3e-3, weight_decay=0.01, betas=(0.9, 0.95))
    first = model.emb.weight.detach().clone()
    second = model.get_parameter("blocks.1.mlp.0.weight")
    loss, late = torch.zeros(()), second.detach().clone()
    for step in range(steps):
        rate = 3e-3 * warm_then_cosine(step, 15, steps)
        if fault == "tape_resumed_at_another_rate" and step >= 90:
            rate = 0.25  # the resumed job takes the rate of the config file, written for SGD
        for group in opt.param_groups:
            group["lr"] = rate
        if step == 60:
            late = second.detach().clone()
            if fault == "tape_mask_of_an_experiment":  # ablate the second block's memory, and forget about it
                for p in model.blocks[1].parameters():
                    p.register_hook(torch.zeros_like)
        ids, nxt = draw(tape)
        loss = fn.cross_entropy(model(ids).flatten(0, 1), nxt.flatten())
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    return {
        "loss": loss.item(),
        "held_out": held_out(model, seed),
        "apart": (model.head.weight - model.emb.weight).norm().item(),
        "moved": (model.emb.weight - first).norm().item(),
        "second": (second - late).norm().item(),
    }


teletype.mistake(
    "tape_tie_is_a_copy",
    "WGT006",
    summary="The output layer gets a clone of the embedding instead of the embedding: the tie is broken at once.",
    change="head.weight = emb.weight",
    layers=("emb", "head"),
    bites="apart",
    silent=True,
)  # fmt: skip
teletype.mistake(
    "tape_copy_left_out_as_tied",
    "UPD003",
    summary="The embedding is left out of the optimizer because the head has it already; but the head has a clone.",
    change="head.weight = emb.weight",
    layers=("emb",),
    bites="moved",
    silent=True,
)
teletype.mistake(
    "tape_resumed_at_another_rate",
    "OPT007", "UPD001", "OPT001", "OPT003", "GRD002", "GRD006",
    summary="At step 90 the job is resumed with the learning rate of another optimizer, a hundred times larger.",
    change="restore the scheduler with the optimizer",
    onset=90,
)  # fmt: skip
teletype.mistake(
    "tape_mask_of_an_experiment",
    "GRD004", "GRD003",
    summary="From step 60 hooks of an ablation return zeros for every gradient of the second block.",
    change="remove the hooks",
    layers=("blocks.1",),
    onset=60,
    bites="second",
    silent=True,
)  # fmt: skip


@program(steps=160, bites="held_out")
def teletype_post_norm(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Six post-norm blocks, Adam at a rate that only a warm-up makes possible."""
    torch.manual_seed(seed)
    tape = make_tape(6000, seed)
    model = Teletype(dim=32, depth=6, post=True)
    opt = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98))
    warm = 1 if fault == "tape_hot_from_the_first_step" else 60
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 6e-3 * warm_then_cosine(step, warm, steps))
    loss = torch.zeros(())
    for _ in range(steps):
        ids, nxt = draw(tape, 12)
        loss = fn.cross_entropy(model(ids).flatten(0, 1), nxt.flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        schedule.step()
    return {"loss": loss.item(), "held_out": held_out(model, seed)}


teletype_post_norm.mistake(
    "tape_hot_from_the_first_step",
    "OPT007", "UPD001", "ACT003", "OPT005", "OPT002",
    summary="The warm-up is left out: the deep post-norm transformer is thrown off in its first steps.",
    change="60 steps of warm-up",
)  # fmt: skip


@program(steps=120, bites="held_out")
def teletype_bfloat16(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The forward pass under bfloat16 autocast, weights in single precision, head of its own."""
    torch.manual_seed(seed)
    tape = make_tape(6000, seed)
    model = Teletype(tied="separate")
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        ids, nxt = draw(tape)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(ids)
            loss = fn.cross_entropy(logits.flatten(0, 1), nxt.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item(), "held_out": held_out(model, seed)}


@program(steps=150, bites="held_out", adversarial="gradients are large when their norm is in the thousands")
def teletype_in_sums(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The loss is summed over letters and lines, in bits; Adam does not mind."""
    torch.manual_seed(seed)
    tape = make_tape(6000, seed)
    model = Teletype()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = torch.zeros(())
    for step in range(steps):
        for group in opt.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 20)
        ids, nxt = draw(tape)
        loss = fn.cross_entropy(model(ids).flatten(0, 1), nxt.flatten(), reduction="sum") / math.log(2)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item(), "held_out": held_out(model, seed)}


@program(steps=150, bites="held_out", adversarial="a state that is detached cuts the gradient by mistake")
def teletype_carries_its_state(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A GRU reads sixteen tapes from left to right; the state is carried on, detached, and reset now and then."""
    torch.manual_seed(seed)
    tape = make_tape(16 * 400, seed).view(16, 400)
    emb, gru, out = nn.Embedding(LETTERS, 24), nn.GRU(24, 64, batch_first=True), nn.Linear(64, LETTERS)
    model = nn.ModuleDict({"emb": emb, "gru": gru, "out": out})
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    state: Tensor | None = None
    loss, at = torch.zeros(()), 0
    for _ in range(steps):
        if at + 21 > tape.shape[1]:
            at, state = 0, None
        hidden, last = gru(emb(tape[:, at : at + 20]), state)
        state = last.detach()
        loss = fn.cross_entropy(out(hidden).flatten(0, 1), tape[:, at + 1 : at + 21].flatten())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        at += 20
    ids, nxt = draw(make_tape(3000, seed + 9000), 64)
    with torch.no_grad():
        value = fn.cross_entropy(out(gru(emb(ids))[0]).flatten(0, 1), nxt.flatten()).item()
    return {"loss": loss.item(), "held_out": value}
