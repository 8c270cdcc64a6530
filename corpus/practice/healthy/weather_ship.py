"""Sound programs from the weather ship: messages, radar, experts and distances. Nothing is wrong with any of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from corpus.case import program


@program(steps=160, bites="accuracy", adversarial="an embedding that is zero nearly everywhere in its gradient is dead")
def ship_call_signs(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Messages as bags of call signs out of ten thousand, most of them never heard; SparseAdam for the table."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    table, head = nn.EmbeddingBag(10_000, 16, mode="mean", sparse=True), nn.Linear(16, 4)
    optimizers = [torch.optim.SparseAdam(table.parameters(), lr=0.1), torch.optim.Adam(head.parameters(), lr=1e-2)]
    value, accuracy = math.nan, 0.0
    for _ in range(steps):
        fleet = torch.randint(4, (64,), generator=g)
        signs = (fleet[:, None] * 60 + torch.randint(60, (64, 6), generator=g)) * 41
        scores = head(table(signs))
        loss = nn.functional.cross_entropy(scores, fleet)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        value, accuracy = loss.item(), (scores.argmax(1) == fleet).float().mean().item()
    return {"loss": value, "accuracy": accuracy}


def echoes(n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Radar rings: rain, ship, ice or iceberg by the width and the number of echoes."""
    kind = torch.randint(4, (n,), generator=g)
    at = torch.arange(36).float()
    centre = 8 + 12 * torch.rand(n, 1, generator=g)
    width = torch.tensor([5.0, 1.0, 2.2, 1.0])[kind][:, None]
    ring = torch.exp(-(((at - centre) / width) ** 2)) + (kind[:, None] == 3) * torch.exp(-((at - centre - 9) ** 2))
    return 2 * ring - 0.5 + 0.25 * torch.randn(n, 36, generator=g), kind


@program(
    steps=200, bites="accuracy", adversarial="a rate that jumps a hundredfold is a broken schedule: these are restarts"
)
def ship_watch_by_watch(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A cosine that starts anew every fifty steps, as the watches do."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(36, 64), nn.LeakyReLU(), nn.Linear(64, 32), nn.LeakyReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=50, eta_min=3e-4)
    value = math.nan
    for _ in range(steps):
        x, kind = echoes(64, g)
        loss = nn.functional.cross_entropy(net(x), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        value = loss.item()
    x, kind = echoes(400, g)
    return {"loss": value, "accuracy": (net(x).argmax(1) == kind).float().mean().item()}


@program(steps=150, bites="accuracy")
def ship_recomputed(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Residual convolutions over the ring, their insides computed again in the backward pass to save memory."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    stem, head = nn.Conv1d(1, 16, 5, padding=2, padding_mode="circular"), nn.Linear(16, 4)
    blocks = nn.ModuleList(
        nn.Sequential(nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv1d(16, 16, 3, padding=1)) for _ in range(4)
    )
    everything = nn.ModuleList([stem, blocks, head])
    optimizer = torch.optim.AdamW(everything.parameters(), lr=4e-3)

    def scores(x: Tensor) -> Tensor:
        h = stem(x[:, None])
        for block in blocks:
            h = h + checkpoint(block, h, use_reentrant=False)
        return head(h.amax(-1))

    value = math.nan
    for _ in range(steps):
        x, kind = echoes(48, g)
        loss = nn.functional.cross_entropy(scores(x), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
    x, kind = echoes(400, g)
    with torch.no_grad():
        return {"loss": value, "accuracy": (scores(x).argmax(1) == kind).float().mean().item()}


@program(
    steps=200, bites="loss", adversarial="gradients that fall to nothing vanish: the forty echoes are known by heart"
)
def ship_by_heart(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Forty echoes, all of them in every step, until there is nothing left to learn."""
    torch.manual_seed(seed)
    x, kind = echoes(40, torch.Generator().manual_seed(seed))
    net = nn.Sequential(nn.Linear(36, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    value = math.nan
    for _ in range(steps):
        loss = nn.functional.cross_entropy(net(x), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
    return {"loss": value}


@program(steps=160, bites="accuracy", adversarial="a loss of exactly zero in many steps is dead: all margins are kept")
def ship_distances(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Triplets of echoes with a margin of a fifth; once a triplet keeps it, it has nothing more to say."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(36, 64), nn.ReLU(), nn.Linear(64, 16))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    value = math.nan
    for _ in range(steps):
        x, kind = echoes(96, g)
        place = nn.functional.normalize(net(x), dim=1)
        apart = 1 - place @ place.T
        same = (kind[:, None] == kind).float()
        friend, stranger = torch.multinomial(same, 1), torch.multinomial(1 - same, 1)
        loss = (apart.gather(1, friend) - apart.gather(1, stranger) + 0.2).relu().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
    x, kind = echoes(300, g)
    with torch.no_grad():
        place = nn.functional.normalize(net(x), dim=1)
    apart = (place @ place.T).fill_diagonal_(-1)
    return {"loss": value, "accuracy": (kind[apart.argmax(1)] == kind).float().mean().item()}


class Loudest(nn.Module):
    """Only the largest eighth of the units goes on."""

    def forward(self, x: Tensor) -> Tensor:
        bound = x.topk(x.shape[-1] // 8, dim=-1).values[..., -1:]
        return torch.where(x >= bound, x, 0.0).relu()


@program(
    steps=160, bites="accuracy", adversarial="seven zeros in eight are dead units: a different eighth speaks each time"
)
def ship_loudest_units(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two wide layers of which only the loudest eighth is heard."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(36, 128), Loudest(), nn.Linear(128, 128), Loudest(), nn.Linear(128, 4))
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    value = math.nan
    for _ in range(steps):
        x, kind = echoes(64, g)
        loss = nn.functional.cross_entropy(net(x), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
    x, kind = echoes(400, g)
    return {"loss": value, "accuracy": (net(x).argmax(1) == kind).float().mean().item()}


@program(steps=160, bites="accuracy")
def ship_lengths_and_directions(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Weights kept as length and direction, a third layer held to a unit norm, NAdam."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    net = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(36, 64)), nn.Softsign(),
        parametrizations.weight_norm(nn.Linear(64, 64)), nn.Softsign(),
        parametrizations.spectral_norm(nn.Linear(64, 32)), nn.ELU(), nn.Linear(32, 4),
    )  # fmt: skip
    optimizer = torch.optim.NAdam(net.parameters(), lr=4e-3)
    value = math.nan
    for _ in range(steps):
        x, kind = echoes(64, g)
        loss = nn.functional.cross_entropy(net(x), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
    x, kind = echoes(400, g)
    with torch.no_grad():
        return {"loss": value, "accuracy": (net(x).argmax(1) == kind).float().mean().item()}


@program(
    steps=160, bites="accuracy", adversarial="experts with little gradient are never chosen: all four share the work"
)
def ship_four_forecasters(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Four experts, a gate that picks two of them for each echo, and a small price on uneven loads."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    entry, gate, head = nn.Linear(36, 32), nn.Linear(32, 4, bias=False), nn.Linear(32, 4)
    experts = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32)) for _ in range(4))
    everything = nn.ModuleDict({"entry": entry, "gate": gate, "experts": experts, "head": head})
    optimizer = torch.optim.AdamW(everything.parameters(), lr=3e-3)
    value, accuracy = math.nan, 0.0
    for _ in range(steps):
        x, kind = echoes(96, g)
        h = nn.functional.gelu(entry(x))
        share = gate(h).softmax(1)
        best = share.topk(2, dim=1)
        weight = torch.zeros_like(share).scatter(1, best.indices, best.values / best.values.sum(1, keepdim=True))
        mixed = sum(weight[:, i, None] * expert(h) for i, expert in enumerate(experts))
        scores = head(h + mixed)
        price = 4 * ((weight > 0).float().mean(0) * share.mean(0)).sum()
        loss = nn.functional.cross_entropy(scores, kind) + 0.02 * price
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value, accuracy = loss.item(), (scores.argmax(1) == kind).float().mean().item()
    return {"loss": value, "accuracy": accuracy}
