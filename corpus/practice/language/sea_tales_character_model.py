"""Character language models by somebody who likes classes: a corpus, a model, a Trainer with a `fit` method."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from corpus.case import program

_WORDS = "the sea is cold and the wind is high so the men of the old port stay in and tell the long tale of the storm"


class Corpus:
    def __init__(self, seed: int, length: int = 6000) -> None:
        words = _WORDS.split()
        picks = torch.randint(len(words), (length // 3,), generator=torch.Generator().manual_seed(seed)).tolist()
        text = " ".join(words[p] for p in picks)[:length]
        self.alphabet = sorted(set(text))
        self.data = torch.tensor([self.alphabet.index(c) for c in text])

    @property
    def space(self) -> int:
        return self.alphabet.index(" ")

    def batch(self, size: int, context: int) -> Tensor:
        starts = torch.randint(len(self.data) - context - 1, (size,))
        return torch.stack([self.data[s : s + context + 1] for s in starts])


class CharRNN(nn.Module):
    def __init__(self, symbols: int, width: int, cell: str, padding_idx: int | None) -> None:
        super().__init__()
        self.embed = nn.Embedding(symbols, 24, padding_idx=padding_idx)
        if cell == "lstm":
            self.rnn: nn.RNNBase = nn.LSTM(24, width, num_layers=2, batch_first=True, dropout=0.1)
        else:
            self.rnn = nn.RNN(24, width, nonlinearity="relu", batch_first=True)
        self.decoder = nn.Linear(width, symbols)

    def forward(self, symbols: Tensor) -> Tensor:
        return self.decoder(self.rnn(self.embed(symbols))[0])


@dataclass
class Trainer:
    model: CharRNN
    corpus: Corpus
    learning_rate: float = 4e-3
    clip: float | None = 1.0
    shift: int = 1
    history: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), self.learning_rate, weight_decay=0.01)
        self.criterion = nn.CrossEntropyLoss()

    def loss_of(self, batch: Tensor) -> Tensor:
        symbols = batch[:, :-1]
        targets = batch[:, self.shift : self.shift + symbols.shape[1]]
        return self.criterion(self.model(symbols).transpose(1, 2), targets)

    def fit(self, steps: int) -> None:
        self.model.train()
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = self.loss_of(self.corpus.batch(16, 32))
            loss.backward()
            if self.clip is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
            self.history.append(loss.item())

    @torch.no_grad()
    def nats_per_symbol(self) -> float:
        self.model.eval()
        batch = Corpus(12345).batch(64, 32)
        nats = nn.functional.cross_entropy(self.model(batch[:, :-1]).transpose(1, 2), batch[:, 1:]).item()
        return min(nats, 50.0) if math.isfinite(nats) else 50.0


@program(steps=150, bites="nats")
def sea_tales(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A two-layer LSTM predicts the next character; AdamW, clipping, a Trainer class."""
    torch.manual_seed(seed)
    corpus = Corpus(seed)
    model = CharRNN(len(corpus.alphabet), 64, "lstm", corpus.space if fault == "space_is_padding" else None)
    shift = 0 if fault == "targets_are_the_inputs" else 1
    rate = 3e-7 if fault == "rate_typed_with_a_wrong_exponent" else 4e-3
    trainer = Trainer(model, corpus, learning_rate=rate, shift=shift)
    start = model.embed.weight[corpus.space].detach().clone()
    trainer.fit(steps)
    moved = (model.embed.weight[corpus.space].detach() - start).norm().item()
    return {"loss": trainer.history[-1], "space_moved": moved, "nats": trainer.nats_per_symbol()}


@program(steps=120, bites="nats")
def sea_tales_relu(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A ReLU recurrent network that starts as the identity, clipped."""
    torch.manual_seed(seed)
    corpus = Corpus(seed)
    model = CharRNN(len(corpus.alphabet), 64, "relu", None)
    nn.init.eye_(model.rnn.get_parameter("weight_hh_l0"))
    clip: float | None = 1.0
    if fault == "recurrent_weights_too_large":
        nn.init.normal_(model.rnn.get_parameter("weight_hh_l0"), std=0.5)
        clip = None
    trainer = Trainer(model, corpus, learning_rate=1e-3, clip=clip)
    trainer.fit(steps)
    return {"nats": trainer.nats_per_symbol()}


sea_tales.mistake(
    "space_is_padding",
    "GRD004", "DAT006", "UPD003", "GRD003",
    summary="padding_idx is the index of the space, the most frequent character: its row stays zero for ever.",
    change="no padding_idx, or an index of its own for padding",
    layers=("embed",),
    bites="space_moved",
    silent=True,
)  # fmt: skip
sea_tales.mistake(
    "targets_are_the_inputs",
    "LSS003", "DAT004", "DAT002",
    summary="The targets were not shifted: the model learns to copy its input and the loss is almost zero at once.",
    change="targets one place further",
)  # fmt: skip
sea_tales.mistake(
    "rate_typed_with_a_wrong_exponent",
    "OPT007", "UPD002", "OPT005",
    summary="A learning rate of 3e-7: nothing is learned.",
    change="4e-3",
)  # fmt: skip
sea_tales_relu.mistake(
    "recurrent_weights_too_large",
    "WGT003", "GRD002", "NUM004", "NUM001", "NUM002",
    summary="Recurrent weights with a spectral radius of four, and no clipping: states grow exponentially in time.",
    change="identity initialisation and clipping",
    layers=("rnn",),
)  # fmt: skip
