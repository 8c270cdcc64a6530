"""Little waves are put into few words: autoencoders whose middle is a code book, a rounding, or a sparse list."""

from __future__ import annotations

import torch
import torch.nn as nn
from torch import Tensor

from corpus.case import program

LENGTH = 32


def waves(n: int, g: torch.Generator) -> Tensor:
    """A bump of one of three forms at one of eight places."""
    t = torch.arange(LENGTH, dtype=torch.float32)
    place = torch.randint(8, (n, 1), generator=g) * 4.0 + 2
    form = torch.randint(3, (n, 1), generator=g)
    gap = t - place
    bump = torch.exp(-(gap**2) / 6)
    wave = torch.where(form == 0, bump, torch.where(form == 1, -bump, gap * bump / 2))
    return wave + 0.05 * torch.randn(n, LENGTH, generator=g)


class Encoder(nn.Module):
    def __init__(self, out: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(LENGTH, 64)
        self.fc2 = nn.Linear(64, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


class Words(nn.Module):
    """The nearest words of a table, several per wave."""

    def __init__(self, n_words: int, size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(n_words, size)
        nn.init.uniform_(self.table.weight, -0.7, 0.7)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        distance = torch.cdist(z.detach(), self.table.weight.detach())
        index = distance.argmin(-1)
        return self.table(index), index


class WordCoder(nn.Module):
    def __init__(self, straight_through: bool, pulled: bool) -> None:
        super().__init__()
        self.encoder = Encoder(24)
        self.words = Words(24, 4)
        self.decoder = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, LENGTH))
        self.straight_through = straight_through
        self.pulled = pulled

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(x).unflatten(-1, (6, 4))
        q, _ = self.words(z.flatten(0, 1))
        q = q.view_as(z)
        towards = ((q - z.detach()) ** 2).mean()
        commit = ((q.detach() - z) ** 2).mean() if self.pulled else ((q.detach() - z.detach()) ** 2).mean()
        carried = z + (q - z).detach() if self.straight_through else q
        return self.decoder(carried.flatten(1)), towards + 0.25 * commit


@program(steps=200, bites="error")
def wave_words(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Six words for a wave, straight-through gradients, a commitment of a quarter."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    cut = fault == "wave_words_cut"
    model = WordCoder(straight_through=not cut, pulled=not cut)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    rec = torch.tensor(0.0)
    start = model.encoder.fc1.weight.detach().clone()
    for _ in range(steps):
        x = waves(64, g)
        out, extra = model(x)
        rec = ((out - x) ** 2).mean()
        opt.zero_grad()
        (rec + extra).backward()
        opt.step()
    x = waves(500, g)
    with torch.no_grad():
        error = ((model(x)[0] - x) ** 2).mean() / x.var()
    return {"loss": rec.item(), "error": error.item(), "moved": (model.encoder.fc1.weight - start).norm().item()}


wave_words.mistake(
    "wave_words_cut",
    "GRD003", "UPD003",
    summary="The nearest words go on as they are, without the straight-through step, and the commitment detaches both.",
    change="z + (q - z).detach()",
    layers=("encoder",),
)  # fmt: skip


class RoundedCoder(nn.Module):
    def __init__(self, straight: bool) -> None:
        super().__init__()
        self.encoder = Encoder(10)
        self.decoder = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, LENGTH))
        self.straight = straight

    def forward(self, x: Tensor) -> Tensor:
        z = 3 * torch.tanh(self.encoder(x))
        hard = torch.round(z)
        return self.decoder(z + (hard - z).detach() if self.straight else hard)


@program(steps=180, bites="error")
def wave_rounded(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The middle is rounded to whole numbers; the gradient pretends that it was not."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    model = RoundedCoder(straight=fault != "wave_rounded_for_real")
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x = waves(64, g)
        loss = nn.functional.mse_loss(model(x), x)
        opt.zero_grad()
        loss.backward()
        opt.step()
    x = waves(500, g)
    with torch.no_grad():
        error = ((model(x) - x) ** 2).mean() / x.var()
    return {"loss": loss.item(), "error": error.item()}


wave_rounded.mistake(
    "wave_rounded_for_real",
    "GRD004", "GRD003", "UPD003",
    summary="torch.round has a gradient of zero everywhere: the encoder stays as it was drawn.",
    change="a straight-through rounding",
    layers=("encoder",),
)  # fmt: skip


@program(steps=180, bites="error")
def wave_dictionary(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A sparse autoencoder: many features, an L1 price for each, columns kept at length one."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    enc, dec = nn.Linear(LENGTH, 96), nn.Linear(96, LENGTH)
    model = nn.ModuleDict({"enc": enc, "dec": dec})
    price = 0.02
    if fault == "wave_dictionary_shut":
        nn.init.constant_(enc.bias, -5.0)  # so that features start out sparse
    if fault == "wave_dictionary_too_dear":
        price = 3.0
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = torch.tensor(0.0)
    for step in range(steps):
        x = waves(96, g)
        f = torch.relu(enc(x))
        weight = price if fault != "wave_dictionary_too_dear" or step >= 80 else 0.02
        loss = ((dec(f) - x) ** 2).sum(1).mean() + weight * f.sum(1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            dec.weight.div_(dec.weight.norm(dim=0, keepdim=True).clamp_min(1e-6))
    x = waves(500, g)
    with torch.no_grad():
        error = ((dec(torch.relu(enc(x))) - x) ** 2).mean() / x.var()
    return {"loss": loss.item(), "error": error.item()}


wave_dictionary.mistake(
    "wave_dictionary_shut",
    "ACT001", "GRD004",
    summary="The features' bias starts at minus five to make them sparse: none of them ever fires.",
    change="bias zero",
    layers=("enc",),
)  # fmt: skip
wave_dictionary.mistake(
    "wave_dictionary_too_dear",
    "GRD009",
    "ACT001",
    "GRD004",
    summary="At step eighty the price of a feature goes to its final value, typed without the point: all features die.",
    change="a price of 0.03",
    layers=("enc",),
    onset=80,
)


@program(steps=180, bites="error", adversarial="weights that move without a gradient were tampered with")
def wave_words_by_mean(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The code book has no gradient at all: every word follows the mean of the waves that chose it."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    encoder = Encoder(8)
    decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, LENGTH))
    both = nn.Sequential(encoder, decoder)
    with torch.no_grad():
        book = encoder(waves(40, g))
    count, total = torch.ones(40), book.clone()
    opt = torch.optim.Adam(both.parameters(), lr=2e-3)
    rec = torch.tensor(0.0)
    for _ in range(steps):
        x = waves(96, g)
        z = encoder(x)
        index = torch.cdist(z.detach(), book).argmin(1)
        q = book[index]
        rec = nn.functional.mse_loss(decoder(z + (q - z).detach()), x)
        opt.zero_grad()
        (rec + 0.1 * nn.functional.mse_loss(z, q)).backward()
        opt.step()
        one_hot = nn.functional.one_hot(index, 40).float()
        count = 0.9 * count + 0.1 * one_hot.sum(0)
        total = 0.9 * total + 0.1 * one_hot.T @ z.detach()
        book = total / count.clamp_min(1e-3)[:, None]
    return {"loss": rec.item(), "error": rec.item()}


@program(steps=150, bites="error", adversarial="signs and thresholds let no gradient through")
def wave_binary(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Weights of minus one and one with a straight-through estimator behind the first layer."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)

    class Binary(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            w = self.weight
            hard = w.sign() * w.abs().mean()
            return nn.functional.linear(input, w + (hard - w).detach(), self.bias)

    net = nn.Sequential(
        nn.Linear(LENGTH, 64), nn.Hardtanh(), Binary(64, 64), nn.BatchNorm1d(64), nn.Hardtanh(), nn.Linear(64, LENGTH)
    )
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x = waves(64, g)
        loss = nn.functional.mse_loss(net(x + 0.2 * torch.randn(64, LENGTH, generator=g)), x)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item(), "error": loss.item()}
