"""A tinker's cart: five healthy trainings that use unusual but sound tools."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program


class Running:
    """The first error, and a mean that follows."""

    def __init__(self) -> None:
        self.first = self.smooth = 0.0
        self.seen = 0

    def add(self, value: float) -> None:
        self.first = value if self.seen == 0 else self.first
        self.smooth = value if self.seen == 0 else 0.9 * self.smooth + 0.1 * value
        self.seen += 1

    def result(self) -> dict[str, float]:
        return {"loss": self.smooth, "first": self.first}


@program(steps=160, adversarial="nearly all rows of a table have no gradient in a step: zero gradients, unused rows")
def tinker_large_catalogue(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Four thousand parts in a sparse table with an optimizer of its own; what they cost follows from their family."""
    torch.manual_seed(seed)
    family = torch.randint(5, (4000,))
    chance = (1 + torch.arange(4000)).float() ** -1.4
    table = nn.Embedding(4000, 12, sparse=True)
    head = nn.Sequential(nn.Linear(12 + 3, 32), nn.ReLU(), nn.Linear(32, 1))
    sparse = torch.optim.SparseAdam(list(table.parameters()), lr=0.05)
    dense = torch.optim.Adam(head.parameters(), lr=1e-2)
    value = torch.randn(5, 3)
    running = Running()
    for _ in range(steps):
        part = torch.multinomial(chance, 64, replacement=True)
        size = torch.randn(64, 3)
        cost = (value[family[part]] * size).sum(1) + family[part].float() - 2
        loss = nn.functional.mse_loss(head(torch.cat([table(part), size], 1)).squeeze(1), cost)
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()
        running.add(loss.item())
    return running.result()


class LowRank(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 3) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2.0 * self.up(self.down(x))


def wobble(x: Tensor, bend: float) -> Tensor:
    return torch.stack([torch.sin(bend * x[:, 0]) + x[:, 1], x[:, 2] * x[:, 3] * bend], 1)


@program(steps=180, adversarial="half of the factors start at zero and the base never moves: symmetric start, frozen")
def tinker_low_rank(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A net is trained on one bend; low-rank factors then adapt it to another."""
    torch.manual_seed(seed)
    layers = [nn.Linear(4, 48), nn.Linear(48, 48)]
    last = nn.Linear(48, 2)
    net = nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), last)
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    for _ in range(min(80, steps // 2)):
        x = torch.randn(96, 4)
        loss = nn.functional.mse_loss(net(x), wobble(x, 1.0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    last.requires_grad_(False)
    adapted = nn.Sequential(LowRank(layers[0]), nn.Tanh(), LowRank(layers[1]), nn.Tanh(), last)
    optimizer = torch.optim.Adam([p for p in adapted.parameters() if p.requires_grad], lr=8e-3)
    running = Running()
    for _ in range(max(1, steps - 80)):
        x = torch.randn(96, 4)
        loss = nn.functional.mse_loss(adapted(x), wobble(x, 1.8))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running.add(loss.item())
    return running.result()


@program(steps=60, adversarial="gradients are not cleared in three of four backward passes: gradient not cleared")
def tinker_in_small_pieces(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Four pieces of a batch, each loss divided by four, bf16 autocast, then one step."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    running = Running()
    for _ in range(steps):
        total = 0.0
        for _ in range(4):
            x = torch.randn(32, 4)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                guess = net(x)
            loss = nn.functional.mse_loss(guess.float(), wobble(x, 1.3)) / 4
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        running.add(total)
    return running.result()


@program(steps=150, adversarial="some heads have no gradient in some steps: no gradient reaches a parameter")
def tinker_any_exit(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Three floors with an exit each; every step trains the way to one exit, drawn by lot."""
    torch.manual_seed(seed)
    floors = nn.ModuleList(nn.Sequential(nn.Linear(4 if i == 0 else 40, 40), nn.GELU()) for i in range(3))
    exits = nn.ModuleList(nn.Linear(40, 2) for _ in range(3))
    optimizer = torch.optim.Adam([*floors.parameters(), *exits.parameters()], lr=5e-3)
    running = Running()
    for _ in range(steps):
        x = torch.randn(96, 4)
        level = int(torch.randint(3, ()))
        h = x
        for floor in floors[: level + 1]:
            h = floor(h)
        loss = nn.functional.mse_loss(exits[level](h), wobble(x, 1.2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running.add(loss.item())
    return running.result()


@program(steps=180)
def tinker_cooling_rod(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A rod cools: the heat equation, its start and its ends are the loss; gradients of gradients."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    running = Running()
    for _ in range(steps):
        inside = torch.rand(96, 2, requires_grad=True)
        heat = net(inside)
        (slope,) = torch.autograd.grad(heat.sum(), inside, create_graph=True)
        (bend,) = torch.autograd.grad(slope[:, 0].sum(), inside, create_graph=True)
        place = torch.rand(48, 1)
        start = net(torch.cat([place, torch.zeros_like(place)], 1)) - torch.sin(3.1416 * place)
        ends = net(torch.cat([(place > 0.5).float(), torch.rand_like(place)], 1))
        residual = slope[:, 1] - 0.2 * bend[:, 0]
        loss = residual.square().mean() + 4 * start.square().mean() + 4 * ends.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        running.add(loss.item())
    return running.result()
