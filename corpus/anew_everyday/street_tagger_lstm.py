"""Tag the words of addresses with a bidirectional LSTM over packed sequences."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from corpus.case import program

WORDS, TAGS, LONGEST = 200, 6, 14
PAD, UNKNOWN = 0, 1


def addresses(seed: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Words, their tags and the lengths: a word's tag follows from its kind and from the kind of the word before."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(6, LONGEST + 1, (count,), generator=g)
    words = torch.randint(2, WORDS, (count, LONGEST), generator=g)
    kind = words * 7 % 13 % 3
    before = torch.cat([torch.zeros(count, 1, dtype=torch.long), kind[:, :-1] % 2], 1)
    tags = kind + 3 * before
    padding = torch.arange(LONGEST) >= lengths[:, None]
    return words.masked_fill(padding, PAD), tags.masked_fill(padding, -100), lengths


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 24, padding_idx=PAD)
        self.lstm = nn.LSTM(24, 32, batch_first=True, bidirectional=True)
        self.drop = nn.Dropout(0.1)
        self.tags = nn.Linear(64, TAGS)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.words(words), lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=LONGEST)
        return self.tags(self.drop(hidden))


def as_known(words: Tensor, known: int) -> Tensor:
    """Words that the vocabulary does not know become UNKNOWN."""
    return torch.where(words >= known, UNKNOWN, words)


def train(steps: int, seed: int, known: int, clear_every: int, batch: int = 32) -> dict[str, float]:
    torch.manual_seed(seed)
    words, tags, lengths = addresses(seed, 1600)
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    per_epoch = len(words) // batch
    for step in range(steps):
        if step % per_epoch == 0:
            order = torch.randperm(len(words))
        if step % clear_every == 0:
            optimizer.zero_grad()  # at fault: tagger_cleared_once_an_epoch
        rows = order[step % per_epoch * batch :][:batch]
        logits = model(as_known(words[rows], known), lengths[rows])
        loss = F.cross_entropy(logits.flatten(0, 1), tags[rows].flatten(), ignore_index=-100)
        loss.backward()
        optimizer.step()
    model.eval()
    words, tags, lengths = addresses(seed + 3, 200)
    with torch.no_grad():
        found = model(as_known(words, known), lengths).argmax(-1)
    real = tags >= 0
    return {"accuracy": (found == tags)[real].float().mean().item(), "loss": loss.item()}


@program(steps=300, bites="accuracy")
def street_tagger(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Bidirectional LSTM over packed sequences that tags the words of addresses."""
    known = 12 if mistake == "tagger_vocabulary_cut_short" else WORDS  # at fault: tagger_vocabulary_cut_short
    return train(steps, seed, known, 50 if mistake == "tagger_cleared_once_an_epoch" else 1)


street_tagger.mistake(
    "tagger_vocabulary_cut_short",
    "DAT006",
    summary="The vocabulary was read from a file of twelve lines: nearly every word becomes UNKNOWN.",
    change="the whole vocabulary",
    layers=("words",),
)
street_tagger.mistake(
    "tagger_cleared_once_an_epoch",
    "GRD007",
    summary="zero_grad stands in the loop over epochs, not in that over batches.",
    change="zero_grad before every backward",
)
