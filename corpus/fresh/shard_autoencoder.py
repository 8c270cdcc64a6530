"""What was the pot? Profiles of shards are squeezed into a short code: a VAE, and autoencoders with tied weights."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import healthy, program

POINTS = 48


def shard_profiles(count: int, seed: int) -> Tensor:
    """Outlines given by four hidden numbers: belly, neck, lip and tilt; between zero and one."""
    rng = torch.Generator().manual_seed(seed)
    belly, neck, lip, tilt = torch.rand(4, count, 1, generator=rng)
    height = torch.linspace(0, 1, POINTS)
    outline = torch.exp(-((height - 0.2 - 0.4 * belly) ** 2) / 0.03) - 0.8 * torch.exp(
        -((height - 0.6 - 0.3 * neck) ** 2) / 0.01
    )
    outline = outline + (2 * lip - 1) * (6 * height).sin() + (tilt - 0.5) * height
    return (2 * outline + 0.1 * torch.randn(count, POINTS, generator=rng)).sigmoid()


class ShardVAE(nn.Module):
    def __init__(self, code: int = 6, activation: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(POINTS, 64), activation(), nn.Linear(64, 64), activation())
        self.mu = nn.Linear(64, code)
        self.logvar = nn.Linear(64, code)
        self.decoder = nn.Sequential(nn.Linear(code, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.reconstruct = nn.Linear(64, POINTS)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + (0.5 * logvar).exp() * torch.randn_like(mu)
        return self.reconstruct(self.decoder(z)), mu, logvar


def prior_gap(mu: Tensor, logvar: Tensor) -> Tensor:
    return -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum(1)


@torch.no_grad()
def shard_error(model: ShardVAE, seed: int) -> float:
    x = shard_profiles(400, seed + 300)
    centre = model.mu(model.encoder(x))
    return ((model.reconstruct(model.decoder(centre)).sigmoid() - x).square().mean() / x.var(0).mean()).item()


@program(steps=300, bites="error")
def shard_library(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A variational autoencoder by Adam; the weight of the prior rises over the first half to one tenth."""
    torch.manual_seed(seed)
    x = shard_profiles(3000, seed)
    vae = ShardVAE()
    optimizer = torch.optim.Adam(vae.parameters(), lr=2e-3)
    loss = torch.zeros(())
    for step in range(steps):
        batch = x[torch.randint(len(x), (64,))]
        logits, mu, logvar = vae(batch)
        if fault == "shard_mean_against_sum":
            reconstruction = fn.binary_cross_entropy_with_logits(logits, batch)
            beta = 1.0
        else:
            reconstruction = fn.binary_cross_entropy_with_logits(logits, batch, reduction="none").sum(1).mean()
            beta = 0.1 * min(1.0, step / (0.5 * steps))
        loss = reconstruction + beta * prior_gap(mu, logvar).mean()
        if fault == "shard_bound_minimised":
            loss = -reconstruction + beta * prior_gap(mu, logvar).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "error": min(shard_error(vae, seed), 1e6)}


shard_library.mistake(
    "shard_mean_against_sum",
    "ACT003", "GRD009",
    summary="Reconstruction is a mean over points and the prior a sum over the code: the code says nothing.",
    change="sum the reconstruction over points, too",
    layers=("encoder", "mu", "logvar"),
)  # fmt: skip
shard_library.mistake(
    "shard_bound_minimised",
    "LSS003",
    summary="The likelihood enters with a minus, as in the paper's bound, but the optimizer minimises.",
    change="reconstruction + beta * prior",
)


class ShardTied(nn.Module):
    """The decoder uses the encoder's matrices the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.enc1, self.enc2 = nn.Linear(POINTS, 40), nn.Linear(40, 8)
        self.bias2, self.bias1 = nn.Parameter(torch.zeros(40)), nn.Parameter(torch.zeros(POINTS))

    def encode(self, x: Tensor) -> Tensor:
        return torch.tanh(self.enc2(torch.tanh(self.enc1(x))))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(fn.linear(self.encode(x), self.enc2.weight.t(), self.bias2))
        return fn.linear(h, self.enc1.weight.t(), self.bias1)


class ShardCopied(ShardTied):
    def __init__(self) -> None:
        super().__init__()
        self.dec2, self.dec1 = nn.Linear(8, 40), nn.Linear(40, POINTS)
        self.dec2.weight = nn.Parameter(self.enc2.weight.t().clone())
        self.dec1.weight = nn.Parameter(self.enc1.weight.t().clone())
        del self.bias1, self.bias2

    def forward(self, x: Tensor) -> Tensor:
        return self.dec1(torch.tanh(self.dec2(self.encode(x))))


@program(steps=240, bites="error")
def shard_drawer(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A deep tanh autoencoder of eight numbers by SGD with momentum, inputs centred."""
    torch.manual_seed(seed)
    x = shard_profiles(2000, seed)
    centre, spread = x.mean(0), x.std()
    if fault == "shard_in_millimetres":
        spread = spread / 60
    x = (x - centre) / spread
    sizes = [POINTS, 40, 32, 8, 32, 40, POINTS]
    layers: list[nn.Module] = []
    for inside, outside in itertools.pairwise(sizes):
        layers += [nn.Linear(inside, outside), nn.Tanh()]
    net = nn.Sequential(*layers[:-1])
    if fault == "shard_init_by_hand":
        for layer in net[::2]:
            nn.init.normal_(layer.weight, std=0.02)
    target_scale = 60.0 if fault == "shard_in_millimetres" else 1.0
    momentum = 0.999 if fault == "shard_momentum_typo" else 0.9
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=momentum)
    for _ in range(steps):
        batch = x[torch.randint(len(x), (64,))]
        loss = fn.mse_loss(net(batch), batch / target_scale)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        test = (shard_profiles(400, seed + 300) - centre) / spread
        error = fn.mse_loss(net(test), test / target_scale).item()
    return {"loss": loss.item(), "error": min(error, 1e6) if error == error else 1e6}


shard_drawer.mistake(
    "shard_in_millimetres",
    "DAT001", "ACT002",
    summary="Profiles go into tanh layers in millimetres: the first layer is always at its limit.",
    change="divide inputs by their spread",
    layers=("0", "1"),
)  # fmt: skip
shard_drawer.mistake(
    "shard_init_by_hand",
    "WGT003", "GRD001",
    summary="Every matrix is drawn with a spread of 0.02: six tanh layers pass on next to nothing.",
    change="Xavier's initialisation",
    layers=("0", "2", "4", "6", "8", "10"),
)  # fmt: skip
shard_drawer.mistake(
    "shard_momentum_typo",
    "OPT008", "OPT004", "OPT007",
    summary="Momentum of 0.999 for 0.9: the weights swing past every good place.",
    change="momentum=0.9",
)  # fmt: skip


@healthy(steps=250, architecture="autoencoder", adversarial="units that are mostly zero are dead")
def shard_few_words(steps: int, seed: int) -> dict[str, float]:
    """A sparse autoencoder: only the six largest of sixty-four ReLU units may speak for a shard."""
    torch.manual_seed(seed)
    x = shard_profiles(3000, seed)
    x = (x - x.mean(0)) / x.std()
    encoder, decoder = nn.Linear(POINTS, 64), nn.Linear(64, POINTS)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=3e-3)
    for _ in range(steps):
        batch = x[torch.randint(len(x), (64,))]
        h = encoder(batch).relu()
        threshold = h.topk(6, dim=1).values[:, -1:]
        loss = fn.mse_loss(decoder(h * (h >= threshold)), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=240, bites="drift", adversarial="a weight used twice was copied")
def shard_tied_drawer(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The decoder is the encoder turned round, and inputs are covered with noise that must be taken off."""
    torch.manual_seed(seed)
    x = shard_profiles(2000, seed)
    x = (x - x.mean(0)) / x.std()
    net = ShardCopied() if fault == "shard_decoder_is_a_copy" else ShardTied()
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.05)
    for _ in range(steps):
        batch = x[torch.randint(len(x), (64,))]
        loss = fn.mse_loss(net(batch + 0.3 * torch.randn_like(batch)), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    back = net.dec1.weight if isinstance(net, ShardCopied) else net.enc1.weight.t()
    drift = (back - net.enc1.weight.t()).norm() / net.enc1.weight.norm()
    return {"loss": loss.item(), "drift": drift.item()}


shard_tied_drawer.mistake(
    "shard_decoder_is_a_copy",
    "WGT006",
    summary="The decoder was to share the encoder's matrices, but each is wrapped in a new Parameter: they part.",
    change="fn.linear(h, encoder.weight.t())",
    layers=("dec1", "dec2", "enc1", "enc2"),
    silent=True,
)
