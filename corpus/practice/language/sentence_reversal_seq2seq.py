"""Sequence to sequence: a GRU encoder, a GRU decoder with attention; the task is to reverse a sentence."""

from __future__ import annotations

import torch
from torch import Tensor, nn, optim

from corpus.case import program

PAD, BOS, VOCAB, LONGEST = 0, 1, 14, 12


def reversed_sentences(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    source = torch.randint(2, VOCAB, (count, LONGEST), generator=generator)
    lengths = torch.randint(3, LONGEST + 1, (count, 1), generator=generator)
    places = torch.arange(LONGEST)[None]
    source = source.masked_fill(places >= lengths, PAD)
    target = source.gather(1, (lengths - 1 - places).clamp(min=0)).masked_fill(places >= lengths, PAD)
    return source, target


class Encoder(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, hidden, padding_idx=PAD)
        self.gru = nn.GRU(hidden, hidden, batch_first=True)

    def forward(self, source: Tensor) -> tuple[Tensor, Tensor]:
        return self.gru(self.embedding(source))


class Attention(nn.Module):
    def __init__(self, hidden: int, dim: int) -> None:
        super().__init__()
        self.query, self.dim = nn.Linear(hidden, hidden, bias=False), dim

    def forward(self, states: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        scores = self.query(states) @ memory.transpose(1, 2) / memory.shape[-1] ** 0.5
        scores = scores.masked_fill(padding[:, None, :], -1e4)
        return scores.softmax(self.dim) @ memory


class Decoder(nn.Module):
    def __init__(self, hidden: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, hidden)
        self.gru = nn.GRU(hidden, hidden, batch_first=True)
        self.attention = Attention(hidden, dim)
        self.output = nn.Linear(2 * hidden, VOCAB)

    def forward(self, tokens: Tensor, memory: Tensor, state: Tensor, padding: Tensor) -> Tensor:
        states, _ = self.gru(self.embedding(tokens), state)
        return self.output(torch.cat([states, self.attention(states, memory, padding)], -1))


class Seq2Seq(nn.Module):
    def __init__(self, hidden: int = 48, dim: int = -1, cut: bool = False) -> None:
        super().__init__()
        self.encoder, self.decoder, self.cut = Encoder(hidden), Decoder(hidden, dim), cut

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, state = self.encoder(source)
        if self.cut:  # "the decoder only reads the memory"
            memory, state = memory.detach(), state.detach()
        shifted = torch.cat([torch.full_like(target[:, :1], BOS), target[:, :-1]], 1)
        return self.decoder(shifted, memory, state, source == PAD)


@program(steps=200, bites="accuracy")
def reverse_translation(steps: int, seed: int, fault: str) -> dict[str, float]:
    """GRU encoder and decoder with attention and teacher forcing, clipped, padded to twelve tokens."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Seq2Seq(dim=1 if fault == "attention_softmax_over_queries" else -1, cut=fault == "memory_is_detached")
    optimizer = optim.Adam(model.parameters(), lr=5e-3)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        source, target = reversed_sentences(32, generator)
        loss = criterion(model(source, target).reshape(-1, VOCAB), target.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    source, target = reversed_sentences(200, torch.Generator().manual_seed(7))
    with torch.no_grad():
        right = model(source, target).argmax(-1) == target
    return {"loss": loss.item(), "accuracy": right[target != PAD].float().mean().item()}


reverse_translation.mistake(
    "memory_is_detached",
    "GRD003",
    summary="The encoder's states are detached before the decoder reads them: the encoder never learns.",
    change="leave .detach() out",
    layers=("encoder",),
)
reverse_translation.mistake(
    "attention_softmax_over_queries",
    "ACT003", "ACT004", "OPT002", "OPT005",
    summary="The attention weights are normalised over the queries instead of the keys.",
    change="softmax over the last dimension",
    layers=("decoder.attention",),
)  # fmt: skip
