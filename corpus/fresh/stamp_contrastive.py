"""Which stamps are of one plate? Embeddings learned from pairs, from triplets and without negatives."""

from __future__ import annotations

import copy
import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from corpus.case import healthy, program

PLATES, PIXELS = 20, 64


def engrave(seed: int = 1840) -> Tensor:
    return torch.randn(PLATES, PIXELS, generator=torch.Generator().manual_seed(seed))


def print_stamps(plate: Tensor, wear: float = 0.9) -> Tensor:
    """A print of each plate: worn, and darker or brighter than the last."""
    clean = engrave()[plate]
    mask = (torch.rand_like(clean) < 0.7).float()
    return clean * mask * (0.7 + 0.6 * torch.rand(len(plate), 1)) + wear * torch.randn_like(clean)


class StampEncoder(nn.Module):
    def __init__(self, out: int = 16, norm: bool = True) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(PIXELS, 96),
            nn.BatchNorm1d(96) if norm else nn.Identity(),
            nn.ReLU(),
            nn.Linear(96, 64),
            nn.ReLU(),
        )
        self.project = nn.Linear(64, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(self.trunk(x))


@torch.no_grad()
def same_plate_rate(encoder: nn.Module, seed: int) -> float:
    """How often is the nearest of forty prints one of the same plate?"""
    torch.manual_seed(seed + 660)
    encoder.eval()
    plate = torch.arange(PLATES).repeat(2)
    hits = 0.0
    for _ in range(10):
        z = fn.normalize(torch.nan_to_num(encoder(print_stamps(plate))), dim=1)
        near = (z @ z.T - 10 * torch.eye(2 * PLATES)).argmax(1)
        hits += (plate[near] == plate).float().mean().item() / 10
    return hits


def info_nce(a: Tensor, b: Tensor, temperature: float) -> Tensor:
    a, b = fn.normalize(a, dim=1), fn.normalize(b, dim=1)
    logits = a @ b.T / temperature
    labels = torch.arange(len(a))
    return 0.5 * (fn.cross_entropy(logits, labels) + fn.cross_entropy(logits.T, labels))


@program(steps=200, bites="accuracy")
def stamp_pairs(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two prints of each plate against the other plates' (InfoNCE), by Adam."""
    torch.manual_seed(seed)
    encoder = StampEncoder().train()
    optimizer = torch.optim.Adam(encoder.parameters(), lr=2e-3)
    late = 0.0
    for step in range(steps):
        plate = torch.randperm(PLATES)
        first = print_stamps(plate)
        if fault == "stamp_second_album_shuffled":
            plate = plate[torch.randperm(PLATES)]
        second = print_stamps(plate)
        if fault == "stamp_rate_multiplied" and step == 100:
            optimizer.param_groups[0]["lr"] *= 1000
        loss = info_nce(encoder(first), encoder(second), 0.2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        late += 0.1 * (loss.item() - late)
    return {"loss": late, "accuracy": same_plate_rate(encoder, seed)}


stamp_pairs.mistake(
    "stamp_second_album_shuffled",
    "DAT004", "OPT005",
    summary="The second prints are drawn in an order of their own: pairs on the diagonal are no pairs.",
    change="both prints by the same order",
)  # fmt: skip
stamp_pairs.mistake(
    "stamp_rate_multiplied",
    "OPT007", "UPD001", "OPT003",
    summary="At step 100 a callback writes the rate in thousandths, and the optimizer takes it for ones.",
    change="no callback",
    onset=100,
    bites="loss",
)  # fmt: skip


class StampPair(nn.Module):
    """Two views to the same code (VICReg): near each other, every unit with a spread, no two units alike."""

    def __init__(self, spread_for_the_log: bool = False) -> None:
        super().__init__()
        self.encoder = StampEncoder(24)
        self.spread_for_the_log = spread_for_the_log

    def spread(self, z: Tensor) -> Tensor:
        if self.spread_for_the_log:
            z = z.detach()
        return fn.relu(1 - (z.var(0) + 1e-4).sqrt()).mean()

    def likeness(self, z: Tensor) -> Tensor:
        covariance = torch.cov(z.T)
        return (covariance.square().sum() - covariance.diagonal().square().sum()) / z.shape[1]

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        za, zb = self.encoder(a), self.encoder(b)
        terms = 12 * fn.mse_loss(za, zb) + 12 * (self.spread(za) + self.spread(zb))
        return terms + self.likeness(za) + self.likeness(zb)


@program(steps=240, bites="accuracy")
def stamp_without_negatives(steps: int, seed: int, fault: str) -> dict[str, float]:
    """No negatives: a term for the spread of every unit keeps the code from collapsing; SGD with momentum."""
    torch.manual_seed(seed)
    net = StampPair(spread_for_the_log=fault == "stamp_spread_only_logged").train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    loss = torch.zeros(())
    for _ in range(steps):
        plate = torch.randint(PLATES, (64,))
        loss = net(print_stamps(plate), print_stamps(plate))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        z = net.encoder(print_stamps(torch.randint(PLATES, (256,))))
    return {"loss": loss.item(), "spread": z.std(0).mean().item(), "accuracy": same_plate_rate(net.encoder, seed)}


stamp_without_negatives.mistake(
    "stamp_spread_only_logged",
    "ACT003",
    summary="The spread is taken of a detached code, for the log, and added to the loss: it holds nothing apart.",
    change="the spread of the code itself",
    layers=("encoder",),
)


def distances(z: Tensor, floor: float) -> Tensor:
    return ((z[:, None] - z[None]).square().sum(2) + floor).sqrt()


@program(steps=180, bites="accuracy")
def stamp_triplets(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The farthest print of a plate shall be nearer than the nearest of another, by RMSprop."""
    torch.manual_seed(seed)
    encoder = StampEncoder(norm=False).train()
    optimizer = torch.optim.RMSprop(encoder.parameters(), lr=5e-4)
    if fault == "stamp_bias_of_minus_ten":
        nn.init.constant_(encoder.trunk[3].bias, -10.0)
    loss = torch.zeros(())
    for _ in range(steps):
        plate = torch.randperm(PLATES)[:10].repeat(4)
        z = fn.normalize(encoder(print_stamps(plate, 0.6)), dim=1)
        gap = distances(z, 0.0 if fault == "stamp_root_of_zero" else 1e-6)
        same = plate[:, None] == plate[None]
        far = (gap * same).max(1).values
        near = (gap + 9.0 * same).min(1).values
        loss = fn.softplus(4 * (far - near)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": same_plate_rate(encoder, seed)}


stamp_triplets.mistake(
    "stamp_root_of_zero",
    "NUM001",
    summary="The distance of a print to itself is the root of zero, whose gradient is infinite.",
    change="sqrt(square + 1e-6)",
)
stamp_triplets.mistake(
    "stamp_bias_of_minus_ten",
    "ACT001", "GRD004",
    summary="The second layer's bias starts at minus ten, an old trick for sparse codes: its ReLU never opens.",
    change="bias at zero",
    layers=("trunk.3", "trunk.4"),
)  # fmt: skip


@healthy(steps=320, architecture="contrastive", adversarial="weights that get no gradient are forgotten")
def stamp_slow_copy(steps: int, seed: int) -> dict[str, float]:
    """Keys come from a slow average of the encoder (MoCo), which is in no optimizer on purpose."""
    torch.manual_seed(seed)
    fast = StampEncoder(norm=False)
    slow = copy.deepcopy(fast).requires_grad_(False)
    optimizer = torch.optim.SGD(fast.parameters(), lr=0.1, momentum=0.9)
    loss = torch.zeros(())
    for _ in range(steps):
        plate = torch.randperm(PLATES)[:16]
        q = fn.normalize(fast(print_stamps(plate)), dim=1)
        with torch.no_grad():
            for old, new in zip(slow.parameters(), fast.parameters()):
                old.mul_(0.95).add_(new, alpha=0.05)
            k = fn.normalize(slow(print_stamps(plate)), dim=1)
        loss = fn.cross_entropy(q @ k.T / 0.15, torch.arange(16))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": same_plate_rate(fast, seed)}


@healthy(steps=200, architecture="metric", adversarial="logits of thirty are a divergence")
def stamp_angular_margin(steps: int, seed: int) -> dict[str, float]:
    """Cosines times thirty with a margin (CosFace): the loss starts near ten, and that is right."""
    torch.manual_seed(seed)
    encoder = StampEncoder()
    centres = nn.Parameter(torch.randn(PLATES, 16))
    optimizer = torch.optim.AdamW(itertools.chain(encoder.parameters(), [centres]), lr=3e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        plate = torch.randint(PLATES, (48,))
        cosine = fn.normalize(encoder(print_stamps(plate)), dim=1) @ fn.normalize(centres, dim=1).T
        loss = fn.cross_entropy(30 * (cosine - 0.2 * fn.one_hot(plate, PLATES)), plate)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": same_plate_rate(encoder, seed)}
