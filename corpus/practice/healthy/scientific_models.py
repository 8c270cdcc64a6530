"""Healthy: operators, hazards and fields, as people train them who come from the sciences."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program


class SpectralLayer(nn.Module):
    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(modes, width, width, dtype=torch.cfloat) / width)
        self.local = nn.Conv1d(width, width, 1)

    def forward(self, u: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(u)[..., : self.modes]
        mixed = torch.einsum("bim,mio->bom", spectrum, self.weight)
        return functional.gelu(torch.fft.irfft(mixed, n=u.shape[-1]) + self.local(u))


@program(steps=120, adversarial="weights are real numbers")
def fourier_operator(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A Fourier neural operator that smooths and shifts a curve; its spectral weights are complex."""
    torch.manual_seed(seed)
    lift, layers, down = (
        nn.Conv1d(1, 12, 1),
        nn.Sequential(SpectralLayer(12, 8), SpectralLayer(12, 8)),
        nn.Conv1d(12, 1, 1),
    )
    net = nn.Sequential(lift, layers, down)
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    grid = torch.linspace(0, 2 * math.pi, 33)[:-1]
    loss = torch.tensor(0.0)
    for _ in range(steps):
        a = torch.randn(16, 5, 1)
        k = torch.arange(1, 6)[:, None]
        u = (a * (k * grid).sin()).sum(1, keepdim=True)
        v = (a * torch.exp(-0.1 * k**2) * (k * (grid - 0.5)).sin()).sum(1, keepdim=True)
        loss = functional.mse_loss(net(u), v)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


class DeepONet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, 24))
        self.trunk = nn.Sequential(nn.Linear(1, 48), nn.Tanh(), nn.Linear(48, 24), nn.Tanh())

    def forward(self, sensors: Tensor, at: Tensor) -> Tensor:
        return self.branch(sensors) @ self.trunk(at).T


@program(steps=160)
def antiderivative_operator(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A branch reads a curve, a trunk the place: together they give its integral up to there."""
    torch.manual_seed(seed)
    net = DeepONet()
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps, eta_min=5e-4)
    at = torch.linspace(0, 1, 24)[:, None]
    k = torch.arange(1, 4).float()
    losses = []
    for _ in range(steps):
        a = torch.randn(32, 3)
        sensors = a @ torch.cos(math.pi * k[:, None] * torch.linspace(0, 1, 12))
        integral = (a / (math.pi * k)) @ torch.sin(math.pi * k[:, None] * at[:, 0])
        loss = (net(sensors, at) - integral).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()
        losses.append(loss.item())
    return {"loss": sum(losses[-10:]) / 10}


@program(steps=120, adversarial="a loss of many hundreds is too large")
def cox_hazard(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Survival of patients by the partial likelihood, summed over a whole ward: it only depends on order."""
    torch.manual_seed(seed)
    x = torch.randn(400, 10)
    risk = x[:, 0] - 0.8 * x[:, 1] + x[:, 2] * x[:, 3]
    time = torch.distributions.Exponential(torch.exp(risk)).sample()
    seen = (torch.rand(400) < 0.7).float()
    net = nn.Sequential(nn.Linear(10, 40), nn.SELU(), nn.Linear(40, 1, bias=False))
    opt = torch.optim.Adagrad(net.parameters(), lr=0.02)
    for _ in range(steps):
        rows = torch.randperm(400)[:300]
        order = rows[time[rows].argsort(descending=True)]
        score = net(x[order]).squeeze(1)
        loss = -((score - score.logcumsumexp(0)) * seen[order]).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        score = net(x).squeeze(1)
    agree = (score[:, None] > score) == (time[:, None] < time)
    return {"loss": -agree.float().mean().item()}


@program(steps=160, adversarial="a loss below zero has the wrong sign")
def mixture_density(steps: int, seed: int, fault: str) -> dict[str, float]:
    """An inverse problem with several answers: five bells a point, the likelihood soon above one."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 15))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    total = 0.0
    for step in range(steps):
        angle = torch.rand(128, 1) * 2 - 1
        seen = angle**2 + 0.01 * torch.randn(128, 1)
        weight, centre, log_width = net(seen).chunk(3, 1)
        bells = -0.5 * ((0.2 * angle - 0.2 * centre) / log_width.exp()) ** 2 - log_width - 0.919
        loss = -(weight.log_softmax(1) + bells).logsumexp(1).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        total += loss.item() / 20 if step >= steps - 20 else 0.0
    return {"loss": total}


class Equilibrium(nn.Module):
    """Where does z = tanh(W z + U x) come to rest? A dozen rounds without gradient, one with."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.utils.parametrizations.spectral_norm(nn.Linear(24, 24))
        self.outside = nn.Linear(8, 24)
        self.read = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        push = self.outside(x)
        with torch.no_grad():
            z = torch.zeros_like(push)
            for _ in range(12):
                z = torch.tanh(0.8 * self.inside(z) + push)
        z = torch.tanh(0.8 * self.inside(z) + push)
        return self.read(z)


@program(steps=130, adversarial="a module that is called without gradient is cut off")
def comes_to_rest(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A deep equilibrium model: most of its forward runs under no_grad, and that is the method."""
    torch.manual_seed(seed)
    x = torch.randn(900, 8)
    y = ((x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 0.3).long()).clamp(max=2)
    net = Equilibrium()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for _ in range(steps):
        rows = torch.randint(700, (64,))
        loss = functional.cross_entropy(net(x[rows]), y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        return {"loss": functional.cross_entropy(net(x[700:]), y[700:]).item()}


@program(steps=150, adversarial="most rows of a table must be used")
def hashed_field(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A picture as a function of the place, from a hash table of which one coarse picture fills a small part."""
    torch.manual_seed(seed)
    table = nn.Embedding(4096, 4)
    nn.init.uniform_(table.weight, -1e-4, 1e-4)  # as in the paper
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    opt = torch.optim.Adam([{"params": table.parameters(), "eps": 1e-15}, {"params": net.parameters()}], lr=1e-2)
    place = torch.stack(torch.meshgrid(torch.linspace(0, 0.999, 24), torch.linspace(0, 0.999, 24), indexing="ij"), -1)
    place = place.view(-1, 2)
    picture = (8 * place[:, 0]).sin() * (6 * place[:, 1]).cos() + (place[:, 0] > place[:, 1]).float()
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(len(place), (256,))
        codes = []
        for size, prime in ((4, 11), (16, 2654435761)):
            cell = (place[rows] * size).long()
            codes.append(table((cell[:, 0] ^ (cell[:, 1] * prime)) % 4096))
        loss = functional.mse_loss(net(torch.cat(codes, 1)).squeeze(1), picture[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


@program(steps=140, adversarial="a loss that stops far above zero is a plateau")
def noise_from_noise(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A denoiser whose targets are noisy, too: it can never come below the variance of the noise."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 7, padding=3), nn.Mish(), nn.Conv1d(16, 16, 7, padding=3), nn.Mish(), nn.Conv1d(16, 1, 1)
    )
    opt = torch.optim.Adamax(net.parameters(), lr=1e-2)
    t = torch.linspace(0, 1, 40)
    for _ in range(steps):
        clean = 2 * (2 * math.pi * (1 + 2 * torch.rand(24, 1, 1)) * t + 6 * torch.rand(24, 1, 1)).sin()
        loss = functional.mse_loss(net(clean + 0.8 * torch.randn_like(clean)), clean + 0.8 * torch.randn_like(clean))
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        clean = 2 * (2 * math.pi * (1 + 2 * torch.rand(200, 1, 1)) * t + 6 * torch.rand(200, 1, 1)).sin()
        return {"loss": functional.mse_loss(net(clean + 0.8 * torch.randn_like(clean)), clean).item()}
