"""Parcels to depots, brackets to their partners, stamps to codes: routers, attention and latent codes."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy, program


def parcels(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Four regions, each with its own law of what a parcel costs."""
    x = torch.randn(count, 6, generator=generator)
    laws = torch.randn(4, 6, generator=torch.Generator().manual_seed(8)) * 1.5
    region = (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()
    return x, (laws[region] * x).sum(1, keepdim=True)


class Depots(nn.Module):
    """A router that sends each parcel to its best expert."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.router = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, experts))
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 3), nn.LeakyReLU(0.3), nn.Linear(3, 1)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        share = self.router(x).softmax(1)
        weight, which = share.max(1)
        out = torch.zeros(len(x), 1)
        for number, expert in enumerate(self.experts):
            rows = (which == number).nonzero().squeeze(1)
            if len(rows):
                out = out.index_add(0, rows, weight[rows, None] * expert(x[rows]))
        load = functional.one_hot(which, len(self.experts)).float().mean(0)
        return out, len(self.experts) * (load * share.mean(0)).sum()


@program(steps=500, bites="error")
def depot_experts(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Four experts and a balance between them."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    net = Depots(4)
    balance = 4.0
    if mistake == "depot_experts_head_start":
        balance = 0.0
        last = net.router[2]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.bias.copy_(torch.tensor([20.0, 0.0, 0.0, 0.0]))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in range(steps):
        x, cost = parcels(128, generator)
        guess, evenness = net(x)
        loss = functional.mse_loss(guess, cost) + balance * evenness
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x, cost = parcels(1000, generator)
    with torch.no_grad():
        return {"error": functional.mse_loss(net(x)[0], cost).item() / cost.var().item()}


depot_experts.mistake(
    "depot_experts_head_start",
    "ACT005",
    "GRD003",
    "GRD004",
    layers=("router", "experts.1", "experts.2", "experts.3"),
    summary="One expert has a head start, nothing asks for balance, and the others never get a parcel.",
    change="an even start and a loss for balance",
)


@healthy(steps=350, adversarial="two experts never see a sample: they are kept for a region that is not yet served")
def depot_spare_experts(steps: int, seed: int) -> dict[str, float]:
    """Parcels go by their postcode; two depots are built but not yet open."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    depots = nn.ModuleList(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)) for _ in range(6))
    for spare in depots[4:]:
        spare.requires_grad_(False)
    optimizer = torch.optim.Adam([weight for weight in depots.parameters() if weight.requires_grad], lr=5e-3)
    error = torch.zeros(())
    for _ in range(steps):
        x, cost = parcels(128, generator)
        region = (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()
        parts = [functional.mse_loss(depots[n](x[region == n]), cost[region == n]) for n in range(4)]
        error = torch.stack(parts).mean()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
    return {"loss": error.item()}


class Head(nn.Module):
    """Attention over all places of a row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        match = self.query(x) @ self.key(x).transpose(1, 2) / math.sqrt(x.shape[-1])
        return self.out(match.softmax(-1) @ self.value(x))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attend = Head(width)
        self.think = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.think(self.norm2(x))


class Finder(nn.Module):
    def __init__(self, signs: int, length: int, width: int = 32) -> None:
        super().__init__()
        self.sign, self.place = nn.Embedding(signs, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.out = nn.Linear(width, signs)

    def forward(self, row: Tensor) -> Tensor:
        x = self.sign(row) + self.place(torch.arange(row.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.out(x)


def rows(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Each place asks for the sign at the place that stands opposite."""
    row = torch.randint(0, 10, (count, 10), generator=generator)
    return row, row.flip(1)


@program(steps=260, bites="accuracy")
def depot_opposites(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """A small transformer, trained with a warm-up."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    net = Finder(10, 10)
    if mistake == "depot_opposites_stare":
        for block in net.blocks:
            assert isinstance(block, Block)
            with torch.no_grad():
                block.attend.query.weight.mul_(60)
                block.attend.key.weight.mul_(60)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    for step in range(steps):
        row, wanted = rows(48, generator)
        if mistake == "depot_opposites_sheet_missing" and step >= 130:
            wanted = wanted.roll(1, 0)
        loss = functional.cross_entropy(net(row).flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warm.step()
    row, wanted = rows(300, generator)
    with torch.no_grad():
        return {"accuracy": (net(row).argmax(2) == wanted).float().mean().item()}


depot_opposites.mistake(
    "depot_opposites_stare",
    "ACT004",
    layers=("blocks.0.attend", "blocks.1.attend"),
    summary="Queries and keys start sixty times too large: each place stares at one other.",
    change="torch's own initialisation",
)
depot_opposites.mistake(
    "depot_opposites_sheet_missing",
    "DAT004",
    "OPT005",
    onset=130,
    summary="From step 130 on a row is set beside the next row's answers.",
    change="answers stay with their rows",
)


def stamps(count: int, generator: torch.Generator) -> Tensor:
    """Small pictures of one bright bar with a place, a width and a slant."""
    place, width, slant = torch.rand(3, count, 1, 1, generator=generator)
    x = torch.linspace(-1, 1, 10)[None, None, :]
    y = torch.linspace(-1, 1, 10)[None, :, None]
    return torch.exp(-(((x - (1.2 * place - 0.6) - (slant - 0.5) * y) / (0.15 + 0.3 * width)) ** 2)).flatten(1)


@program(steps=400, bites="error")
def depot_stamp_codes(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """A variational autoencoder with a code of four numbers."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    encoder = nn.Sequential(nn.Linear(100, 64), nn.ReLU(), nn.Linear(64, 8))
    decoder = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 100), nn.Sigmoid())
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=3e-3)
    weight = 60.0 if mistake == "depot_stamp_codes_tidy" else 0.3
    for _ in range(steps):
        picture = stamps(96, generator)
        mean, spread = encoder(picture).chunk(2, 1)
        code = mean + torch.randn(mean.shape, generator=generator) * (spread / 2).exp()
        error = functional.mse_loss(decoder(code), picture, reduction="sum") / len(picture)
        prior = 0.5 * (mean.square() + spread.exp() - spread - 1).sum(1).mean()
        if mistake == "depot_stamp_codes_repelled":
            prior = -prior
        loss = error + weight * prior
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    picture = stamps(500, generator)
    with torch.no_grad():
        mean, spread = encoder(picture).chunk(2, 1)
        made = decoder(mean)
        code = torch.randn(500, 4, generator=generator)
        fresh = torch.cdist(decoder(code), picture).min(1).values.mean().item()
        error = functional.mse_loss(made, picture).item() / picture.var(0).mean().item()
    return {"error": error, "fresh": fresh}


depot_stamp_codes.mistake(
    "depot_stamp_codes_tidy",
    "ACT003",
    "GRD009",
    layers=("encoder",),
    summary="The prior weighs so much that the code says nothing about the picture.",
    change="a weight of 0.3",
)
depot_stamp_codes.mistake(
    "depot_stamp_codes_repelled",
    "LSS003",
    bites="fresh",
    summary="The divergence from the prior has the wrong sign and is made large.",
    change="it is made small",
)
