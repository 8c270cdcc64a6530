"""Name each word's part in a sentence: a bidirectional tagger with a chain of transitions on top."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

WORDS, TAGS, LENGTH = 60, 5, 10


def sentences(n: int, seed: int, length: int = LENGTH) -> tuple[Tensor, Tensor]:
    """Tags follow one another in a circle most of the time; every word is mostly used with one tag."""
    g = torch.Generator().manual_seed(seed)
    tags = torch.empty(n, length, dtype=torch.long)
    tags[:, 0] = torch.randint(TAGS, (n,), generator=g)
    for t in range(1, length):
        follows = torch.rand(n, generator=g) < 0.85
        tags[:, t] = torch.where(follows, (tags[:, t - 1] + 1) % TAGS, torch.randint(TAGS, (n,), generator=g))
    words = tags + TAGS * torch.randint(WORDS // TAGS, (n, length), generator=g)
    any_word = torch.rand(n, length, generator=g) < 0.3
    return torch.where(any_word, torch.randint(WORDS, (n, length), generator=g), words), tags


class ChainTagger(nn.Module):
    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.encoder = nn.GRU(embedding.embedding_dim, 20, batch_first=True, bidirectional=True)
        self.emit = nn.Linear(40, TAGS)
        self.transitions = nn.Parameter(torch.zeros(TAGS, TAGS))

    def forward(self, words: Tensor) -> Tensor:
        states, _ = self.encoder(self.embedding(words))
        return self.emit(states)

    def chain_loss(self, words: Tensor, tags: Tensor, in_logs: bool = True) -> Tensor:
        """Mean negative log-likelihood of the whole chain of tags."""
        scores = self(words)
        gold = scores.gather(2, tags[:, :, None]).squeeze(2).sum(1)
        gold = gold + self.transitions[tags[:, :-1], tags[:, 1:]].sum(1)
        if in_logs:
            alpha = scores[:, 0]
            for t in range(1, words.shape[1]):
                alpha = torch.logsumexp(alpha[:, :, None] + self.transitions[None], 1) + scores[:, t]
            return (alpha.logsumexp(1) - gold).mean()
        alpha = scores[:, 0].exp()
        for t in range(1, words.shape[1]):
            alpha = (alpha[:, None] @ self.transitions.exp()).squeeze(1) * scores[:, t].exp()
        return (alpha.sum(1).log() - gold).mean()

    @torch.no_grad()
    def decode(self, words: Tensor) -> Tensor:
        scores = self(words)
        best, back = scores[:, 0], []
        for t in range(1, words.shape[1]):
            top = (best[:, :, None] + self.transitions[None]).max(1)
            best, _ = top.values + scores[:, t], back.append(top.indices)
        path = [best.argmax(1)]
        for step in reversed(back):
            path.append(step.gather(1, path[-1][:, None]).squeeze(1))
        return torch.stack(path[::-1], 1)


def tag_accuracy(model: ChainTagger, seed: int) -> float:
    words, tags = sentences(200, seed + 31)
    return (model.decode(words) == tags).float().mean().item()


@program(steps=80, bites="accuracy")
def chain_tagger(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Adam on the likelihood of the chain; longer texts come after the short ones."""
    torch.manual_seed(seed)
    words, tags = sentences(600, seed)
    long_words, long_tags = sentences(60, seed, length=70)
    vectors = 0.3 * torch.randn(WORDS, 16)
    # from_pretrained freezes, unless told otherwise
    embedding = nn.Embedding.from_pretrained(vectors.clone(), freeze=fault == "vectors_frozen_by_default")
    model = ChainTagger(embedding)
    if fault == "tags_of_other_sentences":
        tags = torch.randint(TAGS, tags.shape)[torch.randperm(600)]
        long_tags = torch.randint(TAGS, long_tags.shape)
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    for step in range(steps):
        if step >= 50 and step % 10 == 0:
            batch = torch.randint(60, (6,))
            some_words, some_tags = long_words[batch], long_tags[batch]
        else:
            batch = torch.randint(600, (24,))
            some_words, some_tags = words[batch], tags[batch]
        loss = model.chain_loss(some_words, some_tags, in_logs=fault != "chain_without_logarithms")
        loss = loss / some_words.shape[1]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {
        "accuracy": tag_accuracy(model, seed),
        "moved": (model.embedding.weight - vectors).norm().nan_to_num(1e6).item(),
    }


chain_tagger.mistake(
    "vectors_frozen_by_default",
    "UPD003",
    summary="from_pretrained freezes the table, and the vectors in it are random ones.",
    change="freeze=False",
    layers=("embedding",),
    bites="moved",
    silent=True,
)
chain_tagger.mistake(
    "tags_of_other_sentences",
    "DAT004", "OPT005", "OPT002",
    summary="The tags are drawn from nowhere: they have nothing to do with the words.",
    change="read the tags of the same sentence",
)  # fmt: skip
chain_tagger.mistake(
    "chain_without_logarithms",
    "NUM002", "NUM001", "NUM003",
    summary="The sum over all chains is computed without logarithms and overflows on the first long text.",
    change="logsumexp in every step of the chain",
    onset=50,
)  # fmt: skip


@program(steps=80, bites="accuracy", adversarial="a row of an embedding that never gets a gradient is a mistake")
def tagger_with_padding(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Sentences of different lengths, padded with a token that is to stay zero, and ignored in the loss."""
    torch.manual_seed(seed)
    words, tags = sentences(600, seed)
    words = words + 1
    lengths = torch.randint(3, LENGTH + 1, (600,))
    padded = torch.arange(LENGTH)[None] >= lengths[:, None]
    words, targets = words.masked_fill(padded, 0), tags.masked_fill(padded, -100)
    model = nn.Sequential(
        nn.Embedding(WORDS + 1, 16, padding_idx=0),
        nn.Linear(16, 32),
        nn.ReLU(),
        nn.Linear(32, TAGS),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(600, (24,))
        loss = nn.functional.cross_entropy(model(words[batch]).flatten(0, 1), targets[batch].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right = (model(words).argmax(-1) == tags)[~padded].float().mean().item()
    return {"loss": loss.item(), "accuracy": right}


@program(steps=80, bites="accuracy", adversarial="a parameter that does not move for twenty steps was forgotten")
def tagger_unfrozen_late(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """The table is held fixed while the layers above it settle, then joins with a smaller rate."""
    torch.manual_seed(seed)
    words, tags = sentences(600, seed)
    model = ChainTagger(nn.Embedding(WORDS, 16))
    model.embedding.requires_grad_(False)
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    for step in range(steps):
        if step == steps // 4:
            model.embedding.requires_grad_(True)
            optimizer.add_param_group({"params": model.embedding.parameters(), "lr": 3e-3})
        batch = torch.randint(600, (24,))
        loss = model.chain_loss(words[batch], tags[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"accuracy": tag_accuracy(model, seed)}
