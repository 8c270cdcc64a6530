"""Fine-tune a frozen text encoder on new intents with low-rank adapters."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from corpus.anew_everyday.checkpoints import load_checkpoint
from corpus.case import program

WORDS, WIDTH, LENGTH, INTENTS = 60, 40, 10, 6


def requests(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Word ids, and the intent that nearly half of the words hint at."""
    g = torch.Generator().manual_seed(seed)
    intent = torch.randint(INTENTS, (count,), generator=g)
    words = torch.randint(WORDS, (count, LENGTH), generator=g)
    hint = intent[:, None] + INTENTS * torch.randint(WORDS // INTENTS, (count, LENGTH), generator=g)
    return torch.where(torch.rand(count, LENGTH, generator=g) < 0.45, hint, words), intent


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, words: Tensor) -> Tensor:
        return torch.tanh(self.second(torch.tanh(self.first(self.words(words))))).mean(1)


class LowRank(nn.Module):
    """A frozen linear layer and a correction of low rank beside it."""

    def __init__(self, base: nn.Linear, rank: int, scale: float, all_zero: bool) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        self.down = nn.Parameter(torch.zeros(rank, base.in_features))  # at fault: intents_adapter_all_zero
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        if not all_zero:
            nn.init.kaiming_uniform_(self.down, a=5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * (x @ self.down.T @ self.up.T)


class IntentClassifier(nn.Module):
    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(WIDTH, INTENTS)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.encoder(words))


def adapt(encoder: Encoder, rank: int, scale: float, all_zero: bool) -> None:
    for name in ("first", "second"):
        setattr(encoder, name, LowRank(getattr(encoder, name), rank, scale, all_zero))


@program(steps=1000, bites="accuracy")
def intents_low_rank(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Low-rank adapters on a frozen encoder and a new head, AdamW with clipping."""
    torch.manual_seed(seed)
    encoder = Encoder()
    load_checkpoint(encoder, 11).requires_grad_(False)
    model = IntentClassifier(encoder)
    rank, alpha = 8, 16.0
    scale = alpha * rank**2 if mistake == "intents_alpha_by_rank" else alpha / rank  # at fault: intents_alpha_by_rank
    if mistake != "intents_optimizer_before_adapters":
        adapt(encoder, rank, scale, mistake == "intents_adapter_all_zero")
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=4e-3)  # at fault: intents_optimizer_before_adapters
    if mistake == "intents_optimizer_before_adapters":
        adapt(encoder, rank, scale, False)
    words, intent = requests(seed + 20, 4000)
    for _ in range(steps):
        rows = torch.randint(len(words), (96,))
        loss = F.cross_entropy(model(words[rows]), intent[rows])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
    words, intent = requests(seed + 21, 1000)
    with torch.no_grad():
        return {"accuracy": (model(words).argmax(1) == intent).float().mean().item(), "loss": loss.item()}


ADAPTERS = ("encoder.first.down", "encoder.first.up", "encoder.second.down", "encoder.second.up")

intents_low_rank.mistake(
    "intents_adapter_all_zero",
    "WGT002",
    "GRD004",
    summary="Both matrices of every adapter start at zero, so that neither ever gets a gradient.",
    change="the lower matrix starts at random",
    layers=ADAPTERS,
)
intents_low_rank.mistake(
    "intents_alpha_by_rank",
    "UPD001",
    "ACT002",
    summary="The correction is multiplied by the rank squared, not divided by the rank.",
    change="alpha / rank",
    layers=("encoder.first", "encoder.second"),
)
intents_low_rank.mistake(
    "intents_optimizer_before_adapters",
    "UPD003",
    summary="The optimizer is built before the adapters are put in: only the head is trained.",
    change="adapters first",
    layers=ADAPTERS,
)
