"""A small phrasebook: GRU encoder, GRU decoder, attention between them; numbers are 'translated' into another order."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from corpus.case import program

PAD, START, WORDS = 0, 1, 22


def phrases(seed: int, count: int = 1500) -> tuple[Tensor, Tensor]:
    """Swap neighbours and move every word by a fixed permutation. Word 2 is 'the' and stands in every phrase."""
    g = torch.Generator().manual_seed(seed * 31 + 5)
    source = torch.randint(3, WORDS, (count, 8), generator=g)
    the = torch.randint(8, (count, 3), generator=g)
    source.scatter_(1, the, 2)
    length = torch.randint(5, 9, (count,), generator=g)
    source[torch.arange(8)[None] >= length[:, None]] = PAD
    table = torch.cat([torch.arange(3), torch.randperm(WORDS - 3, generator=g) + 3])
    target = table[source].view(count, 4, 2).flip(-1).reshape(count, 8)
    return source, target


class Encoder(nn.Module):
    def __init__(self, padding: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 32, padding_idx=padding)
        self.drop = nn.Dropout(dropout)
        self.rnn = nn.GRU(32, 24, batch_first=True, bidirectional=True)

    def forward(self, source: Tensor) -> Tensor:
        return self.rnn(self.drop(self.words(source)))[0]


class Decoder(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 32)
        self.rnn = nn.GRU(32, 48, batch_first=True)
        self.query = nn.Linear(48, 48, bias=False)
        self.drop = nn.Dropout(dropout)
        self.mix = nn.Linear(96, 48)
        self.out = nn.Linear(48, WORDS)

    def forward(self, memory: Tensor, previous: Tensor, hidden: Tensor, padded: Tensor) -> Tensor:
        state, _ = self.rnn(self.words(previous), hidden)
        scores = self.query(state) @ memory.transpose(1, 2)
        scores = scores.masked_fill(padded[:, None], -1e4)
        context = (scores / 48**0.5).softmax(-1) @ memory
        return self.out(self.drop(torch.tanh(self.mix(torch.cat([state, context], -1)))))


class Phrasebook(nn.Module):
    def __init__(self, padding: int = PAD, dropout: float = 0.1) -> None:
        super().__init__()
        self.encoder = Encoder(padding, dropout)
        self.decoder = Decoder(dropout)
        self.bridge = nn.Linear(48, 48)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.encoder(source)
        hidden = torch.tanh(self.bridge(memory.mean(1)))[None]
        previous = torch.cat([torch.full_like(target[:, :1], START), target[:, :-1]], 1)
        return self.decoder(memory, previous, hidden, source == PAD)


@program(steps=170, bites="accuracy")
def phrasebook(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Sequence to sequence with attention and teacher forcing, Adam, clipped at one."""
    torch.manual_seed(seed)
    source, target = phrases(seed)
    padding = {"phrase_the_is_padding": 2}.get(fault, PAD)
    model = Phrasebook(padding, dropout=0.97 if fault == "phrase_keeps_three_percent" else 0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    if fault == "phrase_rate_of_a_resume":
        for group in optimizer.param_groups:
            group["lr"] = 2e-6
    pairs = TensorDataset(source[:1300], target[:1300])
    loader = DataLoader(pairs, batch_size=32, shuffle=True, drop_last=True)
    start = model.encoder.words.weight.detach().clone()
    at_hook = model.decoder.mix.weight.detach().clone()
    step, running, worst = 0, 0.0, 0.0
    while step < steps:
        for x, y in loader:
            if fault == "phrase_shouts_at_ninety" and 90 <= step < 93:
                x, y = torch.full_like(x, 7), torch.full_like(y, 5)
            if fault == "phrase_hook_stays" and step == 60:
                model.decoder.mix.weight.register_hook(torch.zeros_like)
                model.decoder.mix.bias.register_hook(torch.zeros_like)
            optimizer.zero_grad()
            loss = criterion(model(x, y).transpose(1, 2), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            running = loss.item() if step == 0 else 0.95 * running + 0.05 * loss.item()
            worst = max(worst, loss.item()) if step > 85 else 0.0
            if step == 80:
                at_hook = model.decoder.mix.weight.detach().clone()
            step += 1
            if step == steps:
                break
    model.eval()
    with torch.no_grad():
        x, y = source[1300:], target[1300:]
        right = (model(x, y).argmax(-1) == y)[y != PAD]
    still = (model.encoder.words.weight[2] - start[2]).norm().item()
    mixed = (model.decoder.mix.weight - at_hook).norm().item()
    accuracy = right.float().mean().item()
    return {"accuracy": accuracy, "loss": running, "the_moved": still, "mix_moved": mixed, "worst": worst}


phrasebook.mistake(
    "phrase_the_is_padding",
    "GRD004", "UPD003", "DAT006",
    summary="padding_idx is the number of a real word, the most frequent one: its row stays zero for ever.",
    change="padding_idx=0",
    layers=("encoder.words",),
    bites="the_moved",
    silent=True,
)  # fmt: skip
phrasebook.mistake(
    "phrase_keeps_three_percent",
    "MOD002", "MOD001", "GRD008", "OPT005",
    summary="Dropout of 0.97: the author thought that it is the share to keep.",
    change="dropout 0.1",
    layers=("encoder.drop", "decoder.drop"),
)  # fmt: skip
phrasebook.mistake(
    "phrase_shouts_at_ninety",
    "DAT002", "OPT003", "GRD006",
    summary="Three batches from step 90 on are one word over and over: a worker has returned its filler.",
    change="leave such batches out",
    onset=90,
    bites="worst",
    silent=True,
)  # fmt: skip
phrasebook.mistake(
    "phrase_hook_stays",
    "GRD004", "UPD003",
    summary="A hook from a debugging session zeroes the gradient of the mixing layer from step 60 on.",
    change="remove the hook",
    layers=("decoder.mix",),
    onset=60,
    bites="mix_moved",
    silent=True,
)  # fmt: skip
phrasebook.mistake(
    "phrase_rate_of_a_resume",
    "OPT007", "UPD002", "OPT005",
    summary="The rate is the last one of an earlier run's schedule, two millionths.",
    change="8e-3",
)  # fmt: skip
