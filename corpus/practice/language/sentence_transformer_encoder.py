"""Sentences classified by `nn.TransformerEncoder`, with padding masks and a warm-up, as in a tutorial."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor, nn

from corpus.case import program

PAD, VOCAB, LENGTH = 0, 30, 16


def reviews(count: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Positive if the first good word (1–4) comes before the first bad word (5–8): order matters."""
    tokens = torch.randint(9, VOCAB, (count, LENGTH), generator=g)
    places = torch.rand(count, 10, generator=g).argsort(1)[:, :2]
    tokens[torch.arange(count), places[:, 0]] = torch.randint(1, 5, (count,), generator=g)
    tokens[torch.arange(count), places[:, 1]] = torch.randint(5, 9, (count,), generator=g)
    lengths = torch.randint(10, LENGTH, (count, 1), generator=g)
    tokens = tokens.masked_fill(torch.arange(LENGTH)[None] >= lengths, PAD)
    return tokens, (places[:, 0] < places[:, 1]).long()


class PositionalEncoding(nn.Module):
    def __init__(self, d_model: int, max_len: int = 64) -> None:
        super().__init__()
        position = torch.arange(max_len)[:, None]
        div = torch.exp(torch.arange(0, d_model, 2) * (-math.log(100.0) / d_model))
        pe = torch.zeros(max_len, d_model)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(position * div), torch.cos(position * div)
        self.register_buffer("pe", pe)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.get_buffer("pe")[: x.size(1)]


class TransformerClassifier(nn.Module):
    def __init__(self, d_model: int = 32, with_positions: bool = True, inverted_mask: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, d_model, padding_idx=PAD)
        self.positions = PositionalEncoding(d_model) if with_positions else nn.Identity()
        layer = nn.TransformerEncoderLayer(d_model, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nested tensors are not used with norm_first; it says so
            self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(d_model, 2)
        self.inverted_mask = inverted_mask

    def forward(self, tokens: Tensor) -> Tensor:
        padding = tokens != PAD if self.inverted_mask else tokens == PAD
        h = self.encoder(self.positions(self.embedding(tokens)), src_key_padding_mask=padding)
        kept = (tokens != PAD).unsqueeze(-1)
        return self.head((h * kept).sum(1) / kept.sum(1))


@program(steps=200, bites="accuracy")
def word_order(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A pre-norm transformer encoder with AdamW and warm-up; the answer lies in the order of two words."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = TransformerClassifier(
        with_positions=fault != "no_positions", inverted_mask=fault == "padding_mask_inverted"
    )
    if fault == "query_key_start_too_large":
        with torch.no_grad():
            model.encoder.layers[1].get_parameter("self_attn.in_proj_weight")[:64].mul_(12)
    rate = 0.3 if fault == "rate_of_another_optimizer" else 3e-3
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)

    def warmup(step: int) -> float:
        factor = min(1.0, (step + 1) / 20)
        return factor * rate if fault == "schedule_returns_a_rate" else factor

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup)
    criterion = nn.CrossEntropyLoss()
    loss = torch.tensor(0.0)
    for _ in range(steps):
        tokens, labels = reviews(64, g)
        loss = criterion(model(tokens), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    tokens, labels = reviews(500, torch.Generator().manual_seed(4))
    with torch.no_grad():
        accuracy = (model(tokens).argmax(1) == labels).float().mean().item()
    return {"loss": loss.item(), "accuracy": accuracy}


word_order.mistake(
    "no_positions",
    "OPT005", "OPT002",
    summary="The positional encoding is missing where only the order of words tells the answer.",
    change="add it",
)  # fmt: skip
word_order.mistake(
    "padding_mask_inverted",
    "ACT003", "ACT004", "OPT005", "OPT002",
    summary="The padding mask is the wrong way round: every word attends to padding alone.",
    change="True where there is padding",
)  # fmt: skip
word_order.mistake(
    "query_key_start_too_large",
    "ACT004", "WGT003",
    summary="Queries and keys of the second layer start twelve times too large: attention is one-hot from the start.",
    change="the default initialisation",
    layers=("encoder.layers.1.self_attn",),
)  # fmt: skip
word_order.mistake(
    "rate_of_another_optimizer",
    "OPT007", "UPD001", "OPT001", "OPT005",
    summary="A learning rate meant for SGD is used with AdamW.",
    change="3e-3",
)  # fmt: skip
word_order.mistake(
    "schedule_returns_a_rate",
    "OPT007", "UPD002", "OPT005",
    summary="The lambda returns a learning rate where a factor belongs: the rate is squared.",
    change="return the factor",
)  # fmt: skip
