"""Healthy trainings with something odd in each of them, as they stand in people's repositories."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from corpus.case import program


@program(steps=150, bites="error", adversarial="a parameter that never gets a gradient is cut off")
def pendulum_by_energy(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A net is the energy of a pendulum, its derivatives are the motion: the last bias cannot have a gradient."""
    torch.manual_seed(seed)
    energy = nn.Sequential(nn.Linear(2, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
    opt = torch.optim.Adam(energy.parameters(), lr=5e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        at = (torch.rand(96, 2) * 4 - 2).requires_grad_()
        (slope,) = torch.autograd.grad(energy(at).sum(), at, create_graph=True)
        motion = torch.stack([slope[:, 1], -slope[:, 0]], dim=1)
        true = torch.stack([at[:, 1], -torch.sin(at[:, 0])], dim=1).detach()
        loss = functional.mse_loss(motion, true)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item(), "error": loss.item()}


def fruit(n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Six sorts of fruit by sixteen measurements."""
    sort = torch.randint(6, (n,), generator=g)
    centre = torch.randn(6, 16, generator=torch.Generator().manual_seed(3))
    return centre[sort] + 0.9 * torch.randn(n, 16, generator=g), sort


@program(steps=160, bites="accuracy", adversarial="a detached branch is a mistake")
def fruit_seen_twice(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two noisy views of a fruit must agree; one side is always detached, and a predictor stands on the other."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(16, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 24), nn.BatchNorm1d(24))
    predictor = nn.Sequential(nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 24))
    opt = torch.optim.SGD([*encoder.parameters(), *predictor.parameters()], lr=0.05, momentum=0.9, weight_decay=1e-4)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x, _ = fruit(96, g)
        a = encoder(x + 0.3 * torch.randn(96, 16, generator=g))
        b = encoder(x + 0.3 * torch.randn(96, 16, generator=g))
        one = functional.cosine_similarity(predictor(a), b.detach()).mean()
        two = functional.cosine_similarity(predictor(b), a.detach()).mean()
        loss = -(one + two) / 2
        opt.zero_grad()
        loss.backward()
        opt.step()
    x, sort = fruit(900, g)
    encoder.eval()
    with torch.no_grad():
        z = functional.normalize(encoder(x), dim=1)
    nearest = (z[600:] @ z[:600].T).argmax(1)
    return {"loss": loss.item(), "accuracy": (sort[:600][nearest] == sort[600:]).float().mean().item()}


@program(steps=160, bites="accuracy", adversarial="updates of a hundred-thousandth of a weight are too small")
def fruit_gently(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A trained body is tuned very gently for a new head, which learns at the usual rate."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    body = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
    head = nn.Linear(48, 6)
    opt = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=3e-3)
    for _ in range(steps // 2):
        x, sort = fruit(64, g)
        opt.zero_grad()
        functional.cross_entropy(head(body(x)), sort).backward()
        opt.step()
    head = nn.Linear(48, 3)
    opt = torch.optim.Adam([{"params": body.parameters(), "lr": 1e-5}, {"params": head.parameters(), "lr": 5e-3}])
    loss, hits = torch.tensor(0.0), 0.0
    for _ in range(steps - steps // 2):
        x, sort = fruit(64, g)
        out = head(body(x))
        loss = functional.cross_entropy(out, sort // 2)
        opt.zero_grad()
        loss.backward()
        opt.step()
        hits = 0.9 * hits + 0.1 * (out.argmax(1) == sort // 2).float().mean().item()
    return {"loss": loss.item(), "accuracy": hits}


@program(steps=160, bites="loss", adversarial="a loss that jumps up has met a bad batch")
def longer_and_longer(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A GRU adds up marked numbers; every fifty steps the series are twice as long."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    gru, read = nn.GRU(2, 24, batch_first=True), nn.Linear(24, 1)
    parameters = [*gru.parameters(), *read.parameters()]
    opt = torch.optim.Adam(parameters, lr=8e-3)
    loss = torch.tensor(0.0)
    for step in range(steps):
        length = 4 * 2 ** min(2, step // 55)
        numbers = torch.rand(64, length, generator=g)
        marks = (torch.rand(64, length, generator=g) < 0.5).float()
        total = (numbers * marks).sum(1, keepdim=True) / 2
        loss = functional.mse_loss(read(gru(torch.stack([numbers, marks], -1))[0][:, -1]), total)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        opt.step()
    return {"loss": loss.item()}


@program(steps=120, bites="accuracy")
def fruit_recomputed(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Blocks with dropout are not kept but computed again in the backward pass."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    blocks = nn.ModuleList(
        nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 32))
        for _ in range(4)
    )
    enter, leave = nn.Linear(16, 32), nn.Linear(32, 6)
    opt = torch.optim.AdamW([*enter.parameters(), *blocks.parameters(), *leave.parameters()], lr=2e-3)
    loss, hits = torch.tensor(0.0), 0.0
    for _ in range(steps):
        x, sort = fruit(64, g)
        h = enter(x)
        for block in blocks:
            h = h + checkpoint(block, h, use_reentrant=False)  # pyright: ignore
        out = leave(h)
        loss = functional.cross_entropy(out, sort)
        opt.zero_grad()
        loss.backward()
        opt.step()
        hits = 0.9 * hits + 0.1 * (out.argmax(1) == sort).float().mean().item()
    return {"loss": loss.item(), "accuracy": hits}


@program(steps=150, bites="accuracy")
def fruit_by_random_waves(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Random cosines of the measurements, kept as buffers, and one linear layer with a one-cycle rate."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)

    class Waves(nn.Module):
        waves: Tensor
        phase: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("waves", 0.2 * torch.randn(16, 200))
            self.register_buffer("phase", 6.28 * torch.rand(200))
            self.out = nn.Linear(200, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.cos(x @ self.waves + self.phase))

    model = Waves()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    cycle = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.4, total_steps=steps + 1)
    loss, hits = torch.tensor(0.0), 0.0
    for _ in range(steps):
        x, sort = fruit(64, g)
        out = model(x)
        loss = functional.cross_entropy(out, sort)
        opt.zero_grad()
        loss.backward()
        opt.step()
        cycle.step()
        hits = 0.9 * hits + 0.1 * (out.argmax(1) == sort).float().mean().item()
    return {"loss": loss.item(), "accuracy": hits}
