"""Flowers in a meadow: local learning rules beside gradient descent, and other unusual ways to move weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import healthy, program

KINDS = 6


class Flowers:
    """Measurements with a few strong directions, of which the kind depends on the signs of three."""

    def __init__(self, seed: int) -> None:
        rule = torch.Generator().manual_seed(21)
        self.mixing = torch.linalg.qr(torch.randn(24, 24, generator=rule)).Q[:, :8]
        self.strength = torch.tensor([3.0, 2.6, 2.2, 1.8, 1.5, 1.2, 1.0, 0.8])
        self.rule = torch.randn(8, KINDS, generator=rule)
        self.generator = torch.Generator().manual_seed(seed)

    def batch(self, count: int) -> tuple[Tensor, Tensor]:
        code = torch.randn(count, 8, generator=self.generator)
        noise = 0.3 * torch.randn(count, 24, generator=self.generator)
        return (code * self.strength) @ self.mixing.T + noise, (torch.tanh(2 * code) @ self.rule).argmax(1)


class Hebbian(nn.Module):
    """Features that learn without a loss, and a readout that has one."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(24, 8, bias=False)
        self.hidden = nn.Linear(8, 48)
        self.readout = nn.Linear(48, KINDS)
        nn.init.normal_(self.features.weight, std=0.1)
        self.features.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(torch.tanh(self.hidden(self.features(x))))


def accuracy(net: nn.Module) -> float:
    x, kind = Flowers(4711).batch(1000)
    net.eval()
    with torch.no_grad():
        return (net(x).argmax(1) == kind).float().mean().item()


@program(
    steps=400, bites="accuracy", adversarial="a layer that no gradient reaches moves all the same, by a rule of its own"
)
def meadow_hebbian(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Sanger's rule finds the strong directions while a readout is trained on them."""
    torch.manual_seed(seed)
    flowers = Flowers(seed + 1)
    net = Hebbian()
    optimizer = torch.optim.SGD([*net.hidden.parameters(), *net.readout.parameters()], lr=0.05, momentum=0.9)
    for _ in range(steps):
        x, kind = flowers.batch(64)
        with torch.no_grad():
            weight = net.features.weight
            y = x @ weight.T
            gathered = y.T @ x / len(x)
            if mistake == "meadow_hebbian_plain":
                weight += 2e-3 * gathered
            else:
                weight += 4e-3 * (gathered - torch.tril(y.T @ y / len(x)) @ weight)
        loss = functional.cross_entropy(net(x), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"accuracy": accuracy(net)}


meadow_hebbian.mistake(
    "meadow_hebbian_plain",
    "WGT001",
    layers=("features",),
    summary="What fires together is wired together, and nothing ever makes a weight smaller.",
    change="Sanger's rule, which takes away what is explained",
)


class Drift(nn.Module):
    """Measurements of very different units, put right by batch normalisation."""

    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.scale = nn.BatchNorm1d(24)
        self.first = nn.Linear(24, width)
        self.norm = nn.BatchNorm1d(width)
        self.second = nn.Linear(width, KINDS)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(functional.relu(self.norm(self.first(self.scale(x)))))


@program(steps=320, bites="accuracy")
def meadow_two_seasons(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Two seasons in one training, with a look at the results between them; instruments differ in their units."""
    torch.manual_seed(seed)
    flowers = Flowers(seed + 1)
    units = 10.0 ** torch.linspace(-2, 2, 24)
    net = Drift()
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)

    def look() -> float:
        x, kind = Flowers(4711).batch(1000)
        net.eval()
        with torch.no_grad():
            return (net(x * units).argmax(1) == kind).float().mean().item()

    if mistake == "meadow_two_seasons_early_look":
        look()
    for step in range(steps):
        x, kind = flowers.batch(64)
        loss = functional.cross_entropy(net(x * units), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 160 and mistake != "meadow_two_seasons_early_look":
            look()
            net.train()
    return {"accuracy": look()}


meadow_two_seasons.mistake(
    "meadow_two_seasons_early_look",
    "MOD001",
    layers=("scale", "norm"),
    summary="A look at the results before the first step leaves the network in evaluation mode.",
    change="train() after each look",
)


@program(steps=300, bites="accuracy")
def meadow_layer_by_layer(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """Each layer has a loss and an optimizer of its own; no gradient passes from one to the next."""
    torch.manual_seed(seed)
    flowers = Flowers(seed + 1)
    body = nn.ModuleList([nn.Linear(24, 48), nn.Linear(48, 48), nn.Linear(48, 48)])
    heads = nn.ModuleList([nn.Linear(48, KINDS) for _ in range(3)])
    if mistake == "meadow_layer_by_layer_equal":
        for layer in body:
            assert isinstance(layer, nn.Linear)
            nn.init.constant_(layer.weight, 0.05)
            nn.init.zeros_(layer.bias)
        for head in heads:
            assert isinstance(head, nn.Linear)
            nn.init.constant_(head.weight, 0.05)
    if mistake == "meadow_layer_by_layer_cold":
        for layer in body:
            assert isinstance(layer, nn.Linear)
            nn.init.constant_(layer.bias, -25.0)
    optimizers = [
        torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=2e-3) for layer, head in zip(body, heads)
    ]
    for _ in range(steps):
        x, kind = flowers.batch(64)
        losses: list[Tensor] = []
        for layer, head in zip(body, heads):
            x = functional.relu(layer(x.detach()))
            losses.append(functional.cross_entropy(head(x), kind))
        for optimizer in optimizers:
            optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    whole = nn.Sequential(body[0], nn.ReLU(), body[1], nn.ReLU(), body[2], nn.ReLU(), heads[2])
    return {"accuracy": accuracy(whole)}


meadow_layer_by_layer.mistake(
    "meadow_layer_by_layer_equal",
    "WGT002",
    summary="All weights start at one value.",
    change="torch's own initialisation",
)
meadow_layer_by_layer.mistake(
    "meadow_layer_by_layer_cold",
    "ACT001",
    "GRD004",
    layers=("body",),
    summary="Biases of minus twenty-five: no unit ever wakes.",
    change="torch's own initialisation",
)


class Lookahead(torch.optim.Optimizer):
    """Fast weights run ahead; every few steps slow ones follow half of the way, and the fast ones return to them."""

    def __init__(self, params: list[nn.Parameter], lr: float, momentum: float, every: int = 6) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "every": every})
        self.count = 0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.count += 1
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["slow"], state["speed"] = weight.clone(), torch.zeros_like(weight)
                state["speed"].mul_(group["momentum"]).add_(weight.grad)
                weight.sub_(state["speed"], alpha=group["lr"])
                if self.count % group["every"] == 0:
                    state["slow"].lerp_(weight, 0.5)
                    weight.copy_(state["slow"])


@program(steps=350, bites="accuracy", adversarial="every sixth step puts the weights half of the way back")
def meadow_lookahead(steps: int, seed: int, mistake: str) -> dict[str, float]:
    """A hand-written optimizer that looks ahead."""
    torch.manual_seed(seed)
    flowers = Flowers(seed + 1)
    net = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, KINDS))
    optimizer = Lookahead(list(net.parameters()), lr=0.05, momentum=0.9)
    order = torch.Generator().manual_seed(seed + 2)
    pool_x, pool_kind = flowers.batch(3000)
    if mistake == "meadow_lookahead_herbarium":
        by_kind = pool_kind.argsort()
        pool_x, pool_kind = pool_x[by_kind], pool_kind[by_kind]
    for step in range(steps):
        if mistake == "meadow_lookahead_herbarium":
            picked = (torch.arange(64) + step * 64) % 3000
        else:
            picked = torch.randint(0, 3000, (64,), generator=order)
        loss = functional.cross_entropy(net(pool_x[picked]), pool_kind[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"accuracy": accuracy(net)}


meadow_lookahead.mistake(
    "meadow_lookahead_herbarium",
    "DAT005",
    summary="The flowers come kind by kind, as they lie in the herbarium.",
    change="in any order",
)


@healthy(steps=360, adversarial="the loss is raised on purpose by an opponent that becomes stronger")
def meadow_adversary(steps: int, seed: int) -> dict[str, float]:
    """Each batch is first changed against the network, by more and more."""
    torch.manual_seed(seed)
    flowers = Flowers(seed + 1)
    net = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, KINDS))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9)
    for step in range(steps):
        x, kind = flowers.batch(64)
        x.requires_grad_()
        (slope,) = torch.autograd.grad(functional.cross_entropy(net(x), kind), x)
        harder = (x + 0.25 * step / steps * slope.sign()).detach()
        loss = functional.cross_entropy(net(harder), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": 1 - accuracy(net)}


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, *slopes: Tensor) -> Tensor:
        return -0.5 * slopes[0]


@healthy(steps=360, adversarial="one of two losses is meant to stay at chance; its gradient is turned round on the way")
def meadow_any_observer(steps: int, seed: int) -> dict[str, float]:
    """Features that tell the kind but not who measured: the observer's head works against the trunk."""
    torch.manual_seed(seed)
    flowers = Flowers(seed + 1)
    trunk = nn.Sequential(nn.Linear(24, 48), nn.ELU(), nn.Linear(48, 32), nn.ELU())
    kinds, observers = nn.Linear(32, KINDS), nn.Sequential(nn.Linear(32, 24), nn.ELU(), nn.Linear(24, 2))
    optimizer = torch.optim.Adam([*trunk.parameters(), *kinds.parameters(), *observers.parameters()], lr=3e-3)
    for _ in range(steps):
        x, kind = flowers.batch(96)
        observer = torch.randint(0, 2, (96,), generator=flowers.generator)
        x = x + 0.8 * observer[:, None] * torch.linspace(-1, 1, 24)
        hidden = trunk(x)
        loss = functional.cross_entropy(kinds(hidden), kind)
        reversed_hidden: Tensor = Reverse.apply(hidden)  # pyright: ignore[reportAssignmentType]
        loss = loss + functional.cross_entropy(observers(reversed_hidden), observer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": 1 - accuracy(nn.Sequential(trunk, kinds))}


@healthy(steps=480, adversarial="one part of the network after the other is trained, then left alone")
def meadow_stacked(steps: int, seed: int) -> dict[str, float]:
    """Greedy pretraining: two autoencoders, one on the other, then all of it with labels at a small rate."""
    torch.manual_seed(seed)
    flowers = Flowers(seed + 1)
    first, second, head = nn.Linear(24, 16), nn.Linear(16, 12), nn.Linear(12, KINDS)
    net = nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), head)
    for layer, below in ((first, nn.Sequential()), (second, nn.Sequential(first, nn.Tanh()))):
        back = nn.Linear(layer.out_features, layer.in_features)
        optimizer = torch.optim.Adam([*layer.parameters(), *back.parameters()], lr=5e-3)
        for _ in range(max(1, steps // 4)):
            x, _ = flowers.batch(96)
            with torch.no_grad():
                x = below(x)
            loss = functional.mse_loss(back(torch.tanh(layer(x))), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(max(1, steps // 2)):
        x, kind = flowers.batch(96)
        loss = functional.cross_entropy(net(x), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": 1 - accuracy(net)}


@healthy(steps=400, adversarial="the rate starts anew five times and the loss goes up each time; five copies are kept")
def meadow_snapshots(steps: int, seed: int) -> dict[str, float]:
    """A cosine cycle for each member of an ensemble, which is one network at five times."""
    torch.manual_seed(seed)
    flowers = Flowers(seed + 1)
    net = nn.Sequential(nn.Linear(24, 48), nn.Mish(), nn.Linear(48, KINDS))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    cycle = max(1, steps // 5)
    kept: list[list[Tensor]] = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * (1 + math.cos(math.pi * (step % cycle) / cycle)) + 1e-4
        x, kind = flowers.batch(64)
        loss = functional.cross_entropy(net(x), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % cycle == cycle - 1:
            kept.append([weight.detach().clone() for weight in net.parameters()])
    with torch.no_grad():
        for which, weight in enumerate(net.parameters()):
            weight.copy_(kept[-1][which])
    return {"loss": 1 - accuracy(net)}
