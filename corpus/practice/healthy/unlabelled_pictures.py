"""Healthy: pictures without labels, pictures that grow, pictures that heal, and small tricks from papers."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss, normalize

from corpus.case import program


def crosses_and_rings(count: int, size: int = 12) -> tuple[Tensor, Tensor]:
    """Four figures somewhere in a noisy square: a cross, a ring, a bar, a dot."""
    label = torch.randint(4, (count,))
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    cy, cx = (torch.randint(size // 3, 2 * size // 3, (count, 1, 1)) for _ in range(2))
    dy, dx = (y - cy).abs(), (x - cx).abs()
    near = (dy <= size // 4) & (dx <= size // 4)
    figures = [near & ((dy == 0) | (dx == 0)), near & ((dy == size // 4) | (dx == size // 4)), near & (dy == 0),
               (dy <= 1) & (dx <= 1)]  # fmt: skip
    shown = torch.stack(figures, 1)[torch.arange(count), label].float()
    return (2 * shown + 0.3 * torch.randn(count, size, size))[:, None], label


def small_net(out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.BatchNorm2d(12), nn.ReLU(),
        nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, out),
    )  # fmt: skip


def two_views(pictures: Tensor) -> tuple[Tensor, Tensor]:
    def view() -> Tensor:
        shift = int(torch.randint(-1, 2, ()))
        return pictures.roll(shift, 3) * (0.8 + 0.4 * torch.rand(len(pictures), 1, 1, 1)) + 0.1 * torch.randn_like(
            pictures
        )

    return view(), view()


@program(steps=120, adversarial="a branch that is detached is a mistake")
def stops_one_side(steps: int, seed: int, fault: str) -> dict[str, float]:
    """SimSiam: two views, a predictor on one, the other side stopped on purpose; the loss is minus a cosine."""
    torch.manual_seed(seed)
    encoder = small_net(24).append(nn.BatchNorm1d(24, affine=False))
    predictor = nn.Sequential(nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 24))
    optimizer = torch.optim.SGD(
        [*encoder.parameters(), *predictor.parameters()], lr=0.05, momentum=0.9, weight_decay=1e-4
    )
    loss, spread = torch.tensor(0.0), 0.0
    for _ in range(steps):
        a, b = two_views(crosses_and_rings(48)[0])
        za, zb = encoder(a), encoder(b)
        pa, pb = predictor(za), predictor(zb)
        loss = -0.5 * (
            torch.cosine_similarity(pa, zb.detach()).mean() + torch.cosine_similarity(pb, za.detach()).mean()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        spread = normalize(za.detach()).std(0).mean().item()
    return {"loss": loss.item(), "spread": spread}


@program(steps=110)
def varied_and_decorrelated(steps: int, seed: int, fault: str) -> dict[str, float]:
    """VICReg: the views must agree, every feature must vary, and no two may say the same."""
    torch.manual_seed(seed)
    encoder = small_net(16)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        views = [encoder(v) for v in two_views(crosses_and_rings(64)[0])]
        agree = mse_loss(*views)
        vary = sum((1 - (z.var(0) + 1e-4).sqrt()).relu().mean() for z in views)
        apart = sum((torch.cov(z.T).square().sum() - torch.cov(z.T).diag().square().sum()) / 16 for z in views)
        loss = 25 * agree + 25 * vary + apart
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=120, adversarial="a module whose weights no optimizer holds was forgotten")
def queue_of_keys(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A slow copy of the encoder makes the keys, a queue keeps the last ones: only the fast one is trained."""
    torch.manual_seed(seed)
    fast = small_net(16)
    slow = copy.deepcopy(fast).requires_grad_(False)
    queue = normalize(torch.randn(128, 16))
    optimizer = torch.optim.Adam(fast.parameters(), lr=2e-3)
    losses: list[float] = []
    pool = crosses_and_rings(256)[0]
    for _ in range(steps):
        a, b = two_views(pool[torch.randperm(256)[:32]])
        query = normalize(fast(a))
        with torch.no_grad():
            key = normalize(slow(b))
        scores = torch.cat([(query * key).sum(1, keepdim=True), query @ queue.T], 1) / 0.2
        loss = cross_entropy(scores, torch.zeros(32, dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(slow.parameters(), fast.parameters(), strict=True):
                p.lerp_(q, 0.05)
        queue = torch.cat([key, queue])[:128]
        losses.append(loss.item())
    return {"loss": sum(losses[-10:]) / 10}


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Conv2d(6, 24, 3, padding=1, padding_mode="circular")
        self.act = nn.Conv2d(24, 6, 1, bias=False)
        nn.init.zeros_(self.act.weight)

    def forward(self, state: Tensor, rounds: int) -> Tensor:
        for _ in range(rounds):
            awake = (torch.rand(len(state), 1, *state.shape[2:]) < 0.5).float()
            state = state + awake * self.act(torch.relu(self.see(state)))
        return state


@program(steps=100, adversarial="zero weights pass no gradient")
def growing_cells(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A cellular automaton that grows a ring from one seed; half of the cells sleep, and the rule starts at zero."""
    torch.manual_seed(seed)
    y, x = torch.meshgrid(torch.arange(10) - 5.0, torch.arange(10) - 5.0, indexing="ij")
    ring = ((x**2 + y**2).sqrt() - 3).abs().lt(0.8).float()
    start = torch.zeros(4, 6, 10, 10)
    start[:, :, 5, 5] = 1.0
    cells = Cells()
    optimizer = torch.optim.Adam(cells.parameters(), lr=4e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = mse_loss(cells(start, 9)[:, 0], ring.expand(4, -1, -1))
        optimizer.zero_grad()
        loss.backward()
        for p in cells.parameters():
            if p.grad is not None:
                p.grad /= p.grad.norm() + 1e-8  # each gradient to length one, as they do it there
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=120, adversarial="most labels are of one class, so nothing is learned")
def specks_on_film(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Specks are two pixels in a hundred: cross-entropy and dice find them all the same."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.InstanceNorm2d(12, affine=True), nn.LeakyReLU(0.1),
        nn.Conv2d(12, 12, 3, padding=1), nn.LeakyReLU(0.1), nn.Conv2d(12, 1, 1),
    )  # fmt: skip
    optimizer = torch.optim.RAdam(net.parameters(), lr=1e-2)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        specks = torch.zeros(8, 1, 16, 16)
        rows, columns = torch.randint(15, (8, 2)), torch.randint(15, (8, 2))
        for k in range(2):
            specks[torch.arange(8), 0, rows[:, k], columns[:, k]] = 1.0
            specks[torch.arange(8), 0, rows[:, k] + 1, columns[:, k]] = 1.0
        film = specks * 1.5 + 0.4 * torch.randn_like(specks)
        logits = net(film)
        p = logits.sigmoid()
        dice = 1 - 2 * (p * specks).sum() / (p.sum() + specks.sum() + 1)
        loss = binary_cross_entropy_with_logits(logits, specks) + dice
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=120, adversarial="a loss that jumps while training is a fault")
def pictures_that_grow(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Small pictures first, larger ones after a third and two thirds of the run, smaller batches each time."""
    torch.manual_seed(seed)
    net = small_net(4)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for step in range(steps):
        size, count = [(8, 64), (12, 40), (16, 24)][min(2, 3 * step // steps)]
        x, y = crosses_and_rings(count, size)
        loss = cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


def adaptive_clip(parameters: list[nn.Parameter], most: float) -> None:
    for p in parameters:
        if p.grad is not None and p.ndim > 1:
            size = p.detach().flatten(1).norm(dim=1).clamp(min=1e-3)
            norm = p.grad.flatten(1).norm(dim=1)
            factor = (most * size / norm.clamp(min=1e-6)).clamp(max=1.0)
            p.grad.mul_(factor.view(-1, *[1] * (p.ndim - 1)))


@program(steps=130, adversarial="gradients that are clipped at every step are over-clipped")
def without_norms(steps: int, seed: int, fault: str) -> dict[str, float]:
    """No normalisation but clipping of every unit by the size of its weights, nearly always in force."""
    torch.manual_seed(seed)
    act: Callable[[], nn.Module] = nn.SiLU
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1), act(), nn.Conv2d(16, 24, 3, stride=2, padding=1), act(),
        nn.Flatten(), nn.Linear(24 * 9, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9, nesterov=True)
    pool, labels = crosses_and_rings(600)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(600, (40,))
        loss = cross_entropy(net(pool[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        adaptive_clip(list(net.parameters()), 0.04)
        optimizer.step()
    return {"loss": loss.item()}
