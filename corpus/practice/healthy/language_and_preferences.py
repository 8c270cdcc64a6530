"""Healthy: language, preferences and sequences, with the optimizers and schedules of this decade."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, ctc_loss, log_softmax, logsigmoid, mse_loss

from corpus.case import program


def chain(count: int, length: int, words: int = 24) -> Tensor:
    """A word is followed by one of three others, always the same three."""
    follow = torch.randint(words, (words, 3), generator=torch.Generator().manual_seed(4))
    text = torch.randint(words, (count, 1))
    for _ in range(length - 1):
        text = torch.cat([text, follow[text[:, -1], torch.randint(3, (count,))][:, None]], 1)
    return text


class Layer(nn.Module):
    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc, self.out = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.out(torch.relu(self.fc(self.n2(x))).square())


class Writer(nn.Module):
    def __init__(self, words: int = 24, dim: int = 32) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, dim), nn.Embedding(20, dim)
        self.layers = nn.Sequential(Layer(dim), Layer(dim))
        self.head = nn.Linear(dim, words, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.layers(self.words(text) + self.places.weight[: text.shape[1]]))


def next_word(model: nn.Module, text: Tensor) -> Tensor:
    return cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def orthogonal(update: Tensor) -> Tensor:
    """Five rounds of Newton and Schulz: nearly the closest orthogonal matrix."""
    x = update / (update.norm() + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return x


@program(steps=110, adversarial="an update whose size does not depend on the gradient is broken")
def writer_orthogonalised(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Matrices step by the orthogonal part of their momentum, the rest by Adam; squared rectifiers in between."""
    torch.manual_seed(seed)
    model = Writer()
    matrices = [p for p in model.layers.parameters() if p.ndim == 2]
    others = [p for n, p in model.named_parameters() if p.ndim < 2 or not n.startswith("layers")]
    adam = torch.optim.AdamW(others, lr=4e-3)
    momentum = [torch.zeros_like(p) for p in matrices]
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = next_word(model, chain(16, 16))
        model.zero_grad()
        loss.backward()
        adam.step()
        with torch.no_grad():
            for p, m in zip(matrices, momentum, strict=True):
                if p.grad is not None:
                    m.mul_(0.9).add_(p.grad)
                    p.sub_(0.02 * orthogonal(m))
    return {"loss": loss.item()}


@program(steps=130, adversarial="a learning rate that ends at zero is a broken schedule")
def writer_warm_stable_decay(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Up in ten steps, level for most of the run, and down to exactly nothing in the last fifth."""
    torch.manual_seed(seed)
    model = Writer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1.0, (s + 1) / 10, max(0.0, (steps - s - 1) / (0.2 * steps)))
    )
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = next_word(model, chain(16, 16))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return {"loss": loss.item()}


@program(steps=120, adversarial="every optimizer keeps a second moment for each weight")
def writer_factored(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Adafactor keeps rows and columns only."""
    torch.manual_seed(seed)
    model = Writer()
    optimizer = torch.optim.Adafactor(model.parameters(), lr=2e-2)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = next_word(model, chain(16, 16))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=100, adversarial="a network that is run and never moves was left out by mistake")
def preferred_answers(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Direct preference optimisation: the loss starts at the logarithm of two, the reference stays as it is."""
    torch.manual_seed(seed)
    policy = Writer()
    with torch.no_grad():
        policy.head.weight.mul_(0.5)
    reference = copy.deepcopy(policy).requires_grad_(False)
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=5e-4)

    def log_chance(model: nn.Module, text: Tensor) -> Tensor:
        return log_softmax(model(text[:, :-1]), -1).gather(-1, text[:, 1:, None]).sum((1, 2))

    loss = torch.tensor(0.0)
    for _ in range(steps):
        good, bad = chain(24, 12), torch.randint(24, (24, 12))
        ours = log_chance(policy, good) - log_chance(policy, bad)
        with torch.no_grad():
            theirs = log_chance(reference, good) - log_chance(reference, bad)
        loss = -logsigmoid(0.1 * (ours - theirs)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


class Bend(nn.Module):
    """A diagonal state space: every channel decays and turns at rates of its own."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.log_decay = nn.Parameter(torch.linspace(-3, 0, dim))
        self.turn = nn.Parameter(torch.linspace(0.1, 3.0, dim))
        self.into, self.out, self.skip = nn.Linear(dim, dim), nn.Linear(2 * dim, dim), nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        age = torch.arange(x.shape[1])
        kernel = torch.exp(-self.log_decay.exp() * age[:, None])
        kernel = torch.cat([kernel * (self.turn * age[:, None]).cos(), kernel * (self.turn * age[:, None]).sin()], 1)
        u = self.into(x)
        n = 2 * x.shape[1]
        long = torch.fft.rfft(torch.cat([u, u], -1), n, 1) * torch.fft.rfft(kernel, n, 0)
        return self.skip * x + self.out(torch.nn.functional.gelu(torch.fft.irfft(long, n, 1)[:, : x.shape[1]]))


@program(steps=130, adversarial="a group that learns far more slowly than the others has a wrong rate")
def remembers_by_turning(steps: int, seed: int, fault: str) -> dict[str, float]:
    """State spaces recall what stood at a marked place; decay and turn learn at a fortieth of the rate."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(5, 24), Bend(24), Bend(24), nn.Linear(24, 4))
    slow = [p for n, p in net.named_parameters() if n.endswith(("log_decay", "turn"))]
    fast = [p for n, p in net.named_parameters() if not n.endswith(("log_decay", "turn"))]
    optimizer = torch.optim.AdamW([{"params": slow, "lr": 1e-4, "weight_decay": 0.0}, {"params": fast, "lr": 4e-3}])
    loss = torch.tensor(0.0)
    for _ in range(steps):
        symbol = torch.randint(4, (32, 30))
        place = torch.randint(20, (32,))
        marked = nn.functional.one_hot(place, 30).float()[..., None]
        x = torch.cat([nn.functional.one_hot(symbol, 4).float() * (0.3 + marked), marked], -1)
        loss = cross_entropy(net(x)[:, -1], symbol[torch.arange(32), place])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=150)
def counts_on_the_abacus(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Runs of noisy symbols are read without alignment, by connectionist temporal classification."""
    torch.manual_seed(seed)
    frames = nn.Conv1d(6, 48, 5, padding=2)
    head = nn.Linear(48, 7)
    optimizer = torch.optim.Adam([*frames.parameters(), *head.parameters()], lr=1e-2)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        words = torch.randint(1, 7, (16, 4))
        shown = nn.functional.one_hot(words - 1, 6).float().repeat_interleave(5, 1)
        shown[:, ::5] = 0.0
        x = shown + 0.3 * torch.randn_like(shown)
        scores = log_softmax(head(torch.relu(frames(x.transpose(1, 2))).transpose(1, 2)), -1).transpose(0, 1)
        loss = ctc_loss(scores, words, torch.full((16,), 20), torch.full((16,), 4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=140, adversarial="batches in the order of time are not mixed")
def follows_the_river(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A GRU reads four long records from end to end, its state carried on from batch to batch and cut in between."""
    torch.manual_seed(seed)
    time = torch.arange(steps * 12 + 1).float()
    records = torch.stack([(time / (7 + k)).sin() + 0.5 * (time / (31 + k)).cos() for k in range(4)], 0)
    records = records + 0.1 * torch.randn(4, len(time))
    gru, head = nn.GRU(1, 24, batch_first=True), nn.Linear(24, 1)
    optimizer = torch.optim.Adam([*gru.parameters(), *head.parameters()], lr=5e-3)
    state = torch.zeros(1, 4, 24)
    loss = torch.tensor(0.0)
    for step in range(steps):
        piece = records[:, step * 12 : step * 12 + 13, None]
        out, state = gru(piece[:, :-1], state.detach())
        loss = mse_loss(head(out), piece[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item() if math.isfinite(loss.item()) else 1e6}
