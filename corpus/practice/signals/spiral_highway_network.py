"""Two spirals through a very deep network: highway gates carry the signal where plain layers lose it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from corpus.case import program

WIDTH = 24


def spirals(n: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(2, (n,), generator=g)
    r = 0.2 + 1.3 * torch.rand(n, generator=g)
    angle = 4.2 * r + 3.14159 * label
    x = torch.stack([r * angle.cos(), r * angle.sin()], 1) + 0.06 * torch.randn(n, 2, generator=g)
    return x, label


class Highway(nn.Module):
    def __init__(self, carry: bool = True, gate_bias: float = -1.5) -> None:
        super().__init__()
        self.transform, self.gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        nn.init.constant_(self.gate.bias, gate_bias)
        self.carry = carry

    def forward(self, x: Tensor) -> Tensor:
        open_by = torch.sigmoid(self.gate(x))
        moved = open_by * torch.tanh(self.transform(x))
        return moved + (1 - open_by) * x if self.carry else moved


class Tunnel(nn.Module):
    def __init__(self, depth: int = 12, carry: bool = True) -> None:
        super().__init__()
        self.entry = nn.Linear(2, WIDTH)
        self.tube = nn.ModuleList(Highway(carry) for _ in range(depth))
        self.exit = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.entry(x))
        for section in self.tube:
            x = section(x)
        return self.exit(x)


def share_right(net: nn.Module, seed: int) -> float:
    x, y = spirals(400, seed + 321)
    net.eval()
    with torch.no_grad():
        return (net(x).argmax(1) == y).float().mean().item()


@program(steps=150, bites="accuracy")
def spiral_highway(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Twelve highway layers under Adam."""
    torch.manual_seed(seed)
    x, y = spirals(800, seed)
    net = Tunnel(carry=fault != "nothing_is_carried")
    with torch.no_grad():
        for section in net.modules():
            if isinstance(section, Highway) and fault == "gates_welded_shut":
                section.gate.bias.fill_(-40.0)
    opt = torch.optim.Adam(net.parameters(), lr=4e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        pick = torch.randint(800, (64,))
        loss = nn.functional.cross_entropy(net(x[pick]), y[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"accuracy": share_right(net, seed), "loss": loss.item()}


spiral_highway.mistake(
    "nothing_is_carried",
    "GRD001", "WGT003",
    summary="The carried part is missing from the highway: each of twelve layers keeps a fifth of the signal.",
    change="add the part that is carried",
)  # fmt: skip
spiral_highway.mistake(
    "gates_welded_shut",
    "ACT002", "GRD001", "GRD004", "WGT003", "UPD002",
    summary="The gates start with a bias of -40: they let nothing in, for ever.",
    change="a bias of -1.5",
    layers=("tube",),
)  # fmt: skip


@program(steps=150, bites="accuracy", adversarial="gates that start almost closed have vanished")
def spiral_highway_twenty(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Twenty layers whose gates start at five percent: their first gradients are small on purpose."""
    torch.manual_seed(seed)
    x, y = spirals(800, seed)
    net = Tunnel(depth=20)
    for section in net.tube:
        if isinstance(section, Highway):
            nn.init.constant_(section.gate.bias, -3.0)
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in range(steps):
        pick = torch.randint(800, (64,))
        loss = nn.functional.cross_entropy(net(x[pick]), y[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"accuracy": share_right(net, seed)}


class DenseTunnel(nn.Module):
    """Every layer sees all that came before it."""

    def __init__(self, growth: int = 12, depth: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2 + growth * i, growth) for i in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(growth) for _ in range(depth))
        self.exit = nn.Linear(2 + growth * depth, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = torch.cat([x, torch.relu(norm(layer(x)))], 1)
        return self.exit(x)


@program(steps=150, bites="accuracy")
def spiral_densenet(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Dense connections, SGD with momentum, cosine."""
    torch.manual_seed(seed)
    x, y = spirals(800, seed)
    net = DenseTunnel()
    opt = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps, eta_min=0.002)
    for _ in range(steps):
        pick = torch.randint(800, (64,))
        loss = nn.functional.cross_entropy(net(x[pick]), y[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()
    return {"accuracy": share_right(net, seed)}


@program(steps=150, bites="accuracy", adversarial="a layer without normalisation or skip cannot be deep")
def spiral_selu(steps: int, seed: int, _fault: str) -> dict[str, float]:
    """Ten plain layers that normalise themselves."""
    torch.manual_seed(seed)
    x, y = spirals(800, seed)
    parts: list[nn.Module] = [nn.Linear(2, WIDTH), nn.SELU()]
    for _ in range(9):
        parts += [nn.Linear(WIDTH, WIDTH), nn.SELU()]
    net = nn.Sequential(*parts, nn.Linear(WIDTH, 2))
    for module in net:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            nn.init.zeros_(module.bias)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(steps):
        pick = torch.randint(800, (64,))
        loss = nn.functional.cross_entropy(net(x[pick]), y[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"accuracy": share_right(net, seed)}
