"""Healthy: sequences. Taggers, copiers, word vectors, latents that look at tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from corpus.case import program


class Tagger(nn.Module):
    def __init__(self, words: int = 60, tags: int = 6) -> None:
        super().__init__()
        self.word_embeds = nn.Embedding(words, 24, padding_idx=0)
        self.lstm = nn.LSTM(24, 32, bidirectional=True, batch_first=True)
        self.hidden2tag = nn.Linear(64, tags)

    def forward(self, sentence: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.word_embeds(sentence), lengths, batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=sentence.shape[1])
        return self.hidden2tag(out)


@program(steps=120, adversarial="batches sorted by length, and a padding row without gradient")
def packed_tagger(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A bidirectional LSTM tags words by the word after them; packed sequences, buckets of equal lengths."""
    torch.manual_seed(seed)
    model = Tagger()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    loss = torch.tensor(0.0)
    for step in range(steps):
        longest = 6 + step % 8  # buckets, shortest first
        sentence = torch.randint(1, 60, (24, longest))
        tags = (sentence + sentence.roll(-1, 1)) % 6 // 2 * 2 + sentence % 2
        lengths = torch.randint(4, longest + 1, (24,))
        mask = torch.arange(longest)[None] < lengths[:, None]
        loss = F.cross_entropy(model(sentence.masked_fill(~mask, 0), lengths)[mask], tags[mask])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


class CopyMachine(nn.Module):
    def __init__(self, vocab: int = 12, d: int = 32) -> None:
        super().__init__()
        self.src, self.tgt = nn.Embedding(vocab, d), nn.Embedding(vocab, d)
        self.pos = nn.Parameter(0.1 * torch.randn(9, d))
        self.transformer = nn.Transformer(d, 4, 1, 1, 64, dropout=0.0, batch_first=True)
        self.generator = nn.Linear(d, vocab)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        mask = self.transformer.generate_square_subsequent_mask(tgt.shape[1])
        out = self.transformer(
            self.src(src) + self.pos[: src.shape[1]], self.tgt(tgt) + self.pos[: tgt.shape[1]], tgt_mask=mask
        )
        return self.generator(out)


@program(steps=120)
def copying_transformer(steps: int, seed: int, fault: str) -> dict[str, float]:
    """`nn.Transformer` learns to copy eight tokens; post-norm, Noam warm-up, label smoothing."""
    torch.manual_seed(seed)
    model = CopyMachine()
    opt = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    noam = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda step: 0.25 * 32**-0.5 * min((step + 1) ** -0.5, (step + 1) * 40**-1.5)
    )
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        tokens = torch.randint(2, 12, (32, 8))
        start = torch.ones(32, 1, dtype=torch.long)
        loss = criterion(model(tokens, torch.cat([start, tokens[:, :-1]], 1)).transpose(1, 2), tokens)
        opt.zero_grad()
        loss.backward()
        opt.step()
        noam.step()
    return {"loss": loss.item()}


class SkipGram(nn.Module):
    def __init__(self, vocab: int, dim: int) -> None:
        super().__init__()
        self.center, self.context = nn.Embedding(vocab, dim), nn.Embedding(vocab, dim)
        nn.init.uniform_(self.center.weight, -0.5 / dim, 0.5 / dim)
        nn.init.zeros_(self.context.weight)

    def forward(self, word: Tensor, around: Tensor, negative: Tensor) -> Tensor:
        v = self.center(word)
        positive = F.logsigmoid((v * self.context(around)).sum(-1))
        strangers = F.logsigmoid(-(self.context(negative) @ v.unsqueeze(-1)).squeeze(-1)).sum(-1)
        return -(positive + strangers).mean()


@program(
    steps=200, adversarial="one table starts at zero and 20,000 rows are mostly untouched: words follow Zipf's law"
)
def word_vectors(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Skip-gram with negative sampling, as in the original word2vec: context table zero, vocabulary by Zipf."""
    torch.manual_seed(seed)
    model = SkipGram(20_000, 16)
    opt = torch.optim.Adam(model.parameters(), lr=2e-2)
    zipf = 1 / torch.arange(1, 20_001).float()
    loss = torch.tensor(0.0)
    for _ in range(steps):
        word = torch.multinomial(zipf, 128, replacement=True)
        around = (word // 4 * 4 + torch.randint(4, (128,))) % 20_000  # neighbours share a group of four
        negative = torch.multinomial(zipf**0.75, 128 * 5, replacement=True).view(128, 5)
        loss = model(word, around, negative)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


class Perceiver(nn.Module):
    def __init__(self, d: int = 32) -> None:
        super().__init__()
        self.latents = nn.Parameter(0.02 * torch.randn(4, d))
        self.lift = nn.Linear(6, d)
        self.cross = nn.MultiheadAttention(d, 2, batch_first=True)
        self.mix = nn.TransformerEncoderLayer(d, 2, 64, dropout=0.1, batch_first=True, activation="gelu")
        self.head = nn.Linear(d, 4)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.lift(x)
        latents = self.latents.expand(len(x), -1, -1)
        latents = latents + self.cross(latents, tokens, tokens, need_weights=False)[0]
        return self.head(self.mix(latents).mean(1))


@program(steps=150, adversarial="the key bias of attention has no gradient by symmetry")
def latent_cross_attention(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Four latents look at sets of twelve points and say which quadrant holds most of the weight."""
    torch.manual_seed(seed)
    model = Perceiver()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x = torch.randn(48, 12, 6)
        y = (x[..., 0].mean(1) > 0).long() * 2 + (x[..., 1].mean(1) > 0).long()
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad(set_to_none=False)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    return {"loss": loss.item()}


class GRUClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 32, num_layers=2, batch_first=True)
        self.norm, self.fc = nn.LayerNorm(32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.gru(x)[0][:, -1]))


@program(steps=120)
def walks_in_bfloat16(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A GRU says where a random walk ended, under bf16 autocast, RMSprop."""
    torch.manual_seed(seed)
    model = GRUClassifier()
    opt = torch.optim.RMSprop(model.parameters(), lr=2e-3, momentum=0.5)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x = torch.randn(48, 15, 3)
        y = x.sum(1).argmax(-1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


class EchoState(nn.Module):
    """A fixed reservoir with spectral radius 0.9 and a trained read-out."""

    def __init__(self, size: int = 64) -> None:
        super().__init__()
        self.drive = nn.Linear(1, size, bias=False).requires_grad_(False)
        self.reservoir = nn.Linear(size, size, bias=False).requires_grad_(False)
        nn.init.orthogonal_(self.reservoir.weight, gain=0.9)
        self.readout = nn.Linear(size, 1)

    def forward(self, u: Tensor) -> Tensor:
        state = u.new_zeros(len(u), self.readout.in_features)
        outputs = []
        for t in range(u.shape[1]):
            state = torch.tanh(self.drive(u[:, t]) + self.reservoir(state))
            outputs.append(self.readout(state))
        return torch.stack(outputs, 1)


@program(steps=150, adversarial="random layers frozen on purpose, never trained by anybody")
def echo_state(steps: int, seed: int, fault: str) -> dict[str, float]:
    """An echo state network recalls its input of three steps ago; only the read-out learns."""
    torch.manual_seed(seed)
    model = EchoState()
    opt = torch.optim.Adam(model.readout.parameters(), lr=1e-2)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        u = torch.rand(32, 15, 1) - 0.5
        loss = F.mse_loss(model(u)[:, 3:], u[:, :-3])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}
