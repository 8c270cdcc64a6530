"""Sound programs of a sailing club: wind, sails, currents and a helmsman. Nothing is wrong with any of them."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from corpus.case import program


class Coupling(nn.Module):
    def __init__(self, flip: bool) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 2))
        self.flip = flip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = x.flip(1).chunk(2, 1) if self.flip else x.chunk(2, 1)
        scale, shift = self.net(a).chunk(2, 1)
        scale = torch.tanh(scale)
        both = torch.cat([a, b * scale.exp() + shift], 1)
        return both.flip(1) if self.flip else both, scale.squeeze(1)


@program(
    steps=180, bites="loss", adversarial="a loss below zero has the wrong sign: this is the logarithm of a density"
)
def regatta_wind_flow(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Wind vectors along a narrow arc by six coupling layers: where the density is high, its negative log is not."""
    torch.manual_seed(seed)
    flow = nn.ModuleList(Coupling(flip=i % 2 == 1) for i in range(6))
    optimizer = torch.optim.Adam(flow.parameters(), lr=5e-3)
    value = math.nan
    for _ in range(steps):
        angle = torch.rand(128, 1) * 1.5
        x = torch.cat([torch.cos(angle), torch.sin(angle)], 1) * 0.5 + 0.02 * torch.randn(128, 2)
        log_det = torch.zeros(128)
        for layer in flow:
            x, change = layer(x)
            log_det = log_det + change
        loss = (0.5 * x.square().sum(1) + math.log(2 * math.pi) - log_det).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 5.0)
        optimizer.step()
        value = loss.item()
    return {"loss": value}


def sails(n: int) -> Tensor:
    height, belly = torch.rand(n, 1), torch.rand(n, 1)
    at = torch.linspace(0, 1, 24)
    return height * torch.sin(math.pi * at) + belly * torch.exp(-(((at - 0.4) / 0.15) ** 2)) + 0.05 * torch.randn(n, 24)


@program(
    steps=180, bites="error", adversarial="a loss that rises for a while diverges: the prior's weight is being raised"
)
def regatta_sail_code(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The shape of a sail in four numbers; the prior's weight grows from nothing to a twentieth over the run."""
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(24, 48), nn.SiLU(), nn.Linear(48, 8))
    decoder = nn.Sequential(nn.Linear(4, 48), nn.SiLU(), nn.Linear(48, 24))
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=4e-3)
    value, error = math.nan, math.nan
    for step in range(steps):
        x = sails(64)
        mean, log_var = encoder(x).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        wrong = (decoder(code) - x).square().sum(1).mean()
        prior = 0.5 * (mean.square() + log_var.exp() - log_var - 1).sum(1).mean()
        loss = wrong + 0.05 * min(1.0, step / 150) * prior
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value, error = loss.item(), wrong.item()
    return {"loss": value, "error": error}


@program(steps=180, bites="loss")
def regatta_drag_equation(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A boat that slows down by the square of its speed: the equation is the loss, its slope by a second backward."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    value = math.nan
    for _ in range(steps):
        time = torch.rand(64, 1, requires_grad=True)
        speed = 1 + time * net(time)
        (slope,) = torch.autograd.grad(speed.sum(), time, create_graph=True)
        loss = (slope + 2 * speed**2).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
    return {"loss": value}


class Lion(torch.optim.Optimizer):
    """The sign of a blend of momentum and gradient, and nothing else."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    memory = self.state[p].setdefault("memory", torch.zeros_like(p))
                    p.sub_(torch.sign(0.9 * memory + 0.1 * p.grad), alpha=group["lr"])
                    memory.mul_(0.99).add_(p.grad, alpha=0.01)


def boats(n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Class of a boat from ten measures; the classes are blobs on a ring."""
    kind = torch.randint(5, (n,), generator=g)
    x = torch.randn(n, 10, generator=g)
    turn = kind * 2 * math.pi / 5
    x[:, 0] = 2 * torch.cos(turn) + 0.5 * x[:, 0]
    x[:, 1] = 2 * torch.sin(turn) + 0.5 * x[:, 1]
    return x, kind


@program(steps=160, bites="accuracy", adversarial="steps of one size in every weight mean a rebuilt Adam: this is Lion")
def regatta_by_signs(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Boat classes by an optimizer that takes only signs."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 5))
    optimizer = Lion(net.parameters(), lr=1e-3)
    value = math.nan
    for _ in range(steps):
        x, kind = boats(64, g)
        loss = nn.functional.cross_entropy(net(x), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
    x, kind = boats(500, g)
    return {"loss": value, "accuracy": (net(x).argmax(1) == kind).float().mean().item()}


@program(steps=200, bites="reward", adversarial="a loss that hovers about zero is not learning: it is a policy's")
def regatta_helmsman(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Which of four tacks for this wind? REINFORCE with the mean reward as baseline."""
    torch.manual_seed(seed)
    policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    value, reward = math.nan, torch.zeros(1)
    for _ in range(steps):
        wind = torch.randn(128, 4)
        choice = torch.distributions.Categorical(logits=policy(wind))
        tack = choice.sample()
        reward = wind.gather(1, tack[:, None]).squeeze(1)
        advantage = (reward - reward.mean()) / reward.std()
        loss = -(choice.log_prob(tack) * advantage).mean() - 0.01 * choice.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
    return {"loss": value, "reward": reward.mean().item()}


@program(steps=160, bites="accuracy", adversarial="activations that carry eight bits must underflow")
def regatta_in_bfloat(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Boat classes under bfloat16 autocast, weights in single precision, a polynomial schedule."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(10, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 5))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=steps, power=0.9)
    value = math.nan
    for _ in range(steps):
        x, kind = boats(64, g)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(net(x), kind)
        loss.backward()
        optimizer.step()
        schedule.step()
        value = loss.item()
    x, kind = boats(500, g)
    return {"loss": value, "accuracy": (net(x).argmax(1) == kind).float().mean().item()}


@program(
    steps=180,
    bites="accuracy",
    adversarial="parameters that no optimizer owns were forgotten: the teacher is an average",
)
def regatta_old_salt(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Sixty labelled boats and many without: a student agrees with the running average of itself."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    known_x, known_y = boats(60, g)
    student = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 5))
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    value = math.nan
    for step in range(steps):
        x, _ = boats(64, g)
        with torch.no_grad():
            told = teacher(x).softmax(1)
        loss = nn.functional.cross_entropy(student(known_x), known_y)
        agree = (student(x + 0.2 * torch.randn(x.shape, generator=g)).softmax(1) - told).square().sum(1).mean()
        loss = loss + min(1.0, step / 60) * agree
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.lerp_(fast, 0.05)
        value = loss.item()
    x, kind = boats(500, g)
    return {"loss": value, "accuracy": (teacher(x).argmax(1) == kind).float().mean().item()}
