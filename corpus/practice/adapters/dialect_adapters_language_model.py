"""A small language model learns one dialect, then another through adapters. Two phases, as in a notebook."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program

WORDS, WIDTH, LENGTH = 20, 32, 16


class Dialect:
    """Every word is mostly followed by one of two others; a second dialect knows other pairs and four new words."""

    def __init__(self, seed: int, words: int, shift: int) -> None:
        self.g = torch.Generator().manual_seed(seed)
        order = torch.randperm(words, generator=torch.Generator().manual_seed(seed + 77))
        self.next = torch.stack([order, order.roll(shift)])
        self.words = words

    def sentences(self, n: int) -> Tensor:
        word = torch.randint(self.words, (n,), generator=self.g)
        out = [word]
        for _ in range(LENGTH):
            way = (torch.rand(n, generator=self.g) < 0.2).long()
            word = self.next[way, word]
            out.append(word)
        return torch.stack(out, dim=1)


class Adapter(nn.Module):
    def __init__(self, rank: int, scale: float = 1.0, blank: bool = False) -> None:
        super().__init__()
        self.down = nn.Linear(WIDTH, rank, bias=False)
        self.up = nn.Linear(rank, WIDTH, bias=False)
        self.scale = scale
        nn.init.zeros_(self.up.weight)
        if blank:
            nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.up(self.down(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
        self.adapter: nn.Module = nn.Identity()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.adapter(self.mlp(self.norm2(x)))


class Speaker(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, words)
        self.quiet = False

    def body(self, tokens: Tensor) -> Tensor:
        mask = torch.triu(torch.full((tokens.shape[1], tokens.shape[1]), float("-inf")), 1)
        x = self.words(tokens) + self.places[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x)

    def forward(self, tokens: Tensor) -> Tensor:
        if self.quiet:
            with torch.no_grad():  # the base must not learn
                x = self.body(tokens)
        else:
            x = self.body(tokens)
        return self.head(x)


def surprise(model: nn.Module, sentences: Tensor) -> Tensor:
    return functional.cross_entropy(model(sentences[:, :-1]).flatten(0, 1), sentences[:, 1:].flatten())


def learn(model: nn.Module, opt: torch.optim.Optimizer, dialect: Dialect, steps: int) -> float:
    value = 0.0
    for _ in range(steps):
        loss = surprise(model, dialect.sentences(24))
        opt.zero_grad()
        loss.backward()
        opt.step()
        value = loss.item()
    return value


FIRST = 70


@program(steps=170, bites="surprise")
def dialect_adapted(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Seventy steps on the first dialect; then the base rests and adapters and head learn the second."""
    torch.manual_seed(seed)
    model = Speaker(WORDS)
    first = min(FIRST, steps // 2)
    learn(model, torch.optim.AdamW(model.parameters(), lr=4e-3), Dialect(seed, WORDS, 3), first)

    for p in model.parameters():
        p.requires_grad = False
    model.head.requires_grad_(True)
    for block in model.blocks:
        block.adapter = Adapter(8, 8.0, blank=fault == "dialect_adapters_blank")
    model.quiet = fault == "dialect_adapters_within_no_grad"
    trained = [p for p in model.parameters() if p.requires_grad]
    other = Dialect(seed + 1, WORDS, 7)
    learn(model, torch.optim.AdamW(trained, lr=4e-3), other, steps - first)
    with torch.no_grad():
        final = surprise(model, other.sentences(200)).item()
    moved = sum(p.detach().abs().sum().item() for b in model.blocks for p in b.adapter.up.parameters())  # pyright: ignore
    return {"surprise": min(final, 1e6) if final == final else 1e6, "moved": min(moved, 1e6)}


dialect_adapted.mistake(
    "dialect_adapters_blank",
    "GRD004", "WGT002", "UPD003", "GRD003",
    summary="Both matrices of every adapter start as zeros, to begin as the identity: neither ever gets a gradient.",
    change="draw the first one at random",
    layers=("blocks.0.adapter", "blocks.1.adapter"),
    onset=FIRST,
    bites="moved",
    silent=True,
)  # fmt: skip
dialect_adapted.mistake(
    "dialect_adapters_within_no_grad",
    "GRD003",
    "UPD003",
    summary="The body runs under no_grad because the base must not learn, but the adapters are in the body.",
    change="freeze the base by its parameters only",
    layers=("blocks.0.adapter", "blocks.1.adapter"),
    onset=FIRST,
    bites="moved",
    silent=True,
)


@program(steps=150, bites="surprise")
def dialect_new_words(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The first dialect, then four new words: table and head grow, the old rows are kept, all go on learning."""
    torch.manual_seed(seed)
    model = Speaker(WORDS)
    first = min(50, steps // 2)
    learn(model, torch.optim.AdamW(model.parameters(), lr=4e-3), Dialect(seed, WORDS, 3), first)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    table, head = nn.Embedding(WORDS + 4, WIDTH), nn.Linear(WIDTH, WORDS + 4)
    with torch.no_grad():
        table.weight[:WORDS] = model.words.weight
        head.weight[:WORDS] = model.head.weight
    model.words, model.head = table, head
    if fault != "dialect_table_grows_too_late":
        optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    start = table.weight.detach().clone()
    other = Dialect(seed + 1, WORDS + 4, 7)
    learn(model, optimizer, other, steps - first)
    with torch.no_grad():
        final = surprise(model, other.sentences(200)).item()
    return {"surprise": final, "moved": (table.weight.detach() - start).norm().item()}


dialect_new_words.mistake(
    "dialect_table_grows_too_late",
    "UPD003",
    summary="The optimizer was made before table and head were replaced by larger ones: it still moves the old ones.",
    change="make the optimizer afterwards",
    layers=("words", "head"),
    onset=50,
)


@program(steps=120, bites="surprise", adversarial="a matrix that starts at zero without any gradient behind it is dead")
def dialect_gates_at_zero(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Both dialects at once; adapters with a random first and a zero second matrix learn along from the beginning."""
    torch.manual_seed(seed)
    model = Speaker(WORDS)
    for block in model.blocks:
        block.adapter = Adapter(8)
    dialect = Dialect(seed, WORDS, 3)
    value = learn(model, torch.optim.AdamW(model.parameters(), lr=4e-3), dialect, steps)
    return {"surprise": value}


@program(steps=160, bites="surprise", adversarial="a loss that leaps and a change of optimizer are an accident")
def dialect_after_dialect(steps: int, seed: int, fault: str) -> dict[str, float]:
    """One dialect after the other with a new optimizer at the change: the loss leaps, for a good reason."""
    torch.manual_seed(seed)
    model = Speaker(WORDS)
    learn(model, torch.optim.AdamW(model.parameters(), lr=4e-3), Dialect(seed, WORDS, 3), steps // 2)
    slower = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return {"surprise": learn(model, slower, Dialect(seed + 1, WORDS, 7), steps - steps // 2)}
