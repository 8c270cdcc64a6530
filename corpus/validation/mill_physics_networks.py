"""Networks inside physics: energies, equations, operators, equilibria and simulators of a small mill."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from corpus.case import program


def mlp(*sizes: int, act: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    parts: list[nn.Module] = []
    for a, b in pairwise(sizes):
        parts += [nn.Linear(a, b), act()]
    return nn.Sequential(*parts[:-1])


@program(steps=200, bites="error", adversarial="a loss that settles below nought has the wrong sign")
def mill_least_energy(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Deep Ritz: the bent beam has the least energy, and the least energy is negative."""
    torch.manual_seed(seed)
    net = mlp(1, 32, 32, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    energy = torch.zeros(())
    for _ in range(steps):
        x = torch.rand(128, 1, requires_grad=True)
        u = x * (1 - x) * net(x)
        slope = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        load = math.pi**2 * torch.sin(math.pi * x)
        energy = (0.5 * slope**2 - load * u).mean()
        optimizer.zero_grad()
        energy.backward()
        optimizer.step()
    x = torch.linspace(0, 1, 100)[:, None]
    with torch.no_grad():
        error = (x * (1 - x) * net(x) - torch.sin(math.pi * x)).abs().max()
    return {"loss": energy.item(), "error": error.item()}


@program(steps=250, bites="error", adversarial="one term of the loss a hundred times another drowns it")
def mill_heat_equation(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A heat equation with a heavily weighted boundary: the weight is what makes it converge."""
    torch.manual_seed(seed)
    net = mlp(2, 32, 32, 32, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)
    loss = torch.zeros(())
    for _ in range(steps):
        p = torch.rand(128, 2, requires_grad=True)  # place, time
        u = net(p)
        first = torch.autograd.grad(u.sum(), p, create_graph=True)[0]
        second = torch.autograd.grad(first[:, 0].sum(), p, create_graph=True)[0][:, 0]
        residual = (first[:, 1] - 0.1 * second).pow(2).mean()
        x, t = torch.rand(64), torch.rand(64)
        start = net(torch.stack([x, torch.zeros(64)], 1))[:, 0] - torch.sin(math.pi * x)
        walls = net(torch.stack([(x > 0.5).float(), t], 1))[:, 0]
        loss = residual + 20 * start.pow(2).mean() + 20 * walls.pow(2).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        decay.step()
    x, t = torch.rand(200), torch.rand(200)
    truth = torch.exp(-0.1 * math.pi**2 * t) * torch.sin(math.pi * x)
    with torch.no_grad():
        error = (net(torch.stack([x, t], 1))[:, 0] - truth).abs().mean()
    return {"loss": loss.item(), "error": error.item()}


@program(steps=200, bites="loss", adversarial="the last bias has no gradient because only a derivative is compared")
def mill_conserves_energy(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A Hamiltonian network: its output is never compared, only its derivative, so its last bias never learns."""
    torch.manual_seed(seed)
    state = torch.randn(2000, 2) * 1.2
    motion = torch.stack([state[:, 1], -torch.sin(state[:, 0])], 1)
    energy = mlp(2, 48, 48, 1, act=nn.Softplus)
    optimizer = torch.optim.Adam(energy.parameters(), lr=5e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        rows = torch.randint(2000, (96,))
        s = state[rows].requires_grad_()
        g = torch.autograd.grad(energy(s).sum(), s, create_graph=True)[0]
        loss = (torch.stack([g[:, 1], -g[:, 0]], 1) - motion[rows]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


class Equilibrium(nn.Module):
    """The output is the fixed point of one layer: found without a graph, then one step with it."""

    def __init__(self, inputs: int, dim: int) -> None:
        super().__init__()
        self.inject = nn.Linear(inputs, dim)
        self.cell = nn.Linear(dim, dim, bias=False)
        nn.init.normal_(self.cell.weight, std=0.5 / math.sqrt(dim))

    def step(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(self.cell(z) + x)

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.inject(inputs)
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(12):
                z = self.step(z, x)
        return self.step(z, x)


@program(steps=180, bites="loss", adversarial="a forward pass within no_grad cuts the graph")
def mill_at_equilibrium(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A deep equilibrium model with the one-step gradient: twelve iterations without a graph on purpose."""
    torch.manual_seed(seed)
    x = torch.randn(1500, 6)
    y = torch.stack([x[:, 0] * x[:, 1], torch.sin(x[:, 2] + x[:, 3])], 1)
    model = nn.Sequential(Equilibrium(6, 48), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=1e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        rows = torch.randint(1500, (64,))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=160, bites="loss")
def mill_koopman(steps: int, seed: int, fault: str) -> dict[str, float]:
    """An autoencoder in whose middle time is a matrix: reconstruct, step linearly, and rebuild the next state."""
    torch.manual_seed(seed)
    angle, speed = torch.rand(1200) * 3 - 1.5, torch.randn(1200)
    states = [torch.stack([angle, speed], 1)]
    for _ in range(4):
        a, s = states[-1].T
        s = s - 0.15 * torch.sin(a)
        states.append(torch.stack([a + 0.15 * s, s], 1))
    track = torch.stack(states, 1)
    encode, decode = mlp(2, 40, 8, act=nn.ELU), mlp(8, 40, 2, act=nn.ELU)
    advance = nn.Linear(8, 8, bias=False)
    nn.init.eye_(advance.weight)
    everything = nn.ModuleList([encode, decode, advance])
    optimizer = torch.optim.Adamax(everything.parameters(), lr=6e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        rows = track[torch.randint(1200, (48,))]
        z = encode(rows[:, 0])
        loss = nn.functional.mse_loss(decode(z), rows[:, 0])
        for t in range(1, 5):
            z = advance(z)
            loss = loss + nn.functional.mse_loss(decode(z), rows[:, t])
            loss = loss + 0.1 * nn.functional.mse_loss(z, encode(rows[:, t]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=160, bites="loss", adversarial="forces of ten thousand newtons are badly scaled targets")
def mill_beads_on_springs(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A message-passing simulator learns the accelerations of beads; it divides by their spread by itself."""
    torch.manual_seed(seed)
    place = torch.randn(600, 6, 2)
    gap = place[:, :, None] - place[:, None]
    distance = gap.norm(dim=-1, keepdim=True) + torch.eye(6)[None, :, :, None]
    force = (-1e4 * gap * (1 - 1 / distance)).sum(2)
    spread = force.std()

    class Simulator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.edge = mlp(3, 48, 48, act=nn.SiLU)
            self.node = mlp(48, 48, 2, act=nn.SiLU)

        def forward(self, gap: Tensor, distance: Tensor) -> Tensor:
            messages = self.edge(torch.cat([gap, distance], -1))
            messages = messages * (1 - torch.eye(6))[None, :, :, None]
            return self.node(messages.sum(2)) * spread

    model = Simulator()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        rows = torch.randint(600, (32,))
        optimizer.zero_grad()
        loss = nn.functional.l1_loss(model(gap[rows], distance[rows]), force[rows])
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}
