"""Laser scans of a coast: sixteen blocks for the kind of rock, a normal law for the retreat, alarms for the paths."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from corpus.case import program

ROCKS, POINTS, PATHS = 4, 32, 6


def scans(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A profile of the cliff; kind of rock, retreat per year and which of six paths must be closed follow from it."""
    g = torch.Generator().manual_seed(seed + 77)
    rock = torch.randint(ROCKS, (n,), generator=g)
    height = torch.linspace(0, 1, POINTS)
    steep = 0.85 + 0.3 * torch.rand(n, 1, generator=g)
    profile = torch.sin((3 + 3 * rock[:, None]) * height * steep) + 0.6 * torch.randn(n, POINTS, generator=g)
    noise = 0.1 + 0.3 * (profile[:, 3] > 0).float()
    retreat = profile[:, :8].mean(1) * 2 + steep[:, 0] * profile[:, 20] + noise * torch.randn(n, generator=g)
    closed = (profile[:, 2 : 2 + PATHS] * profile[:, 20 : 20 + PATHS] > 0.1).float()
    return profile, rock, retreat, closed


class Block(nn.Module):
    def __init__(self, width: int, around: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width) if around else nn.Identity()
        self.inner = nn.Linear(width, width)
        self.around = around

    def forward(self, x: Tensor) -> Tensor:
        change = torch.relu(self.inner(self.norm(x)))
        return x + change if self.around else change


@program(steps=160, bites="accuracy")
def cliffs(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Sixteen normalised blocks, each with a way around it, by AdamW."""
    torch.manual_seed(seed)
    profile, rock, _, _ = scans(1300, seed)
    around = fault != "cliff_no_way_around"
    net = nn.Sequential(
        nn.Linear(POINTS, 40), *(Block(40, around) for _ in range(16)),
        nn.LayerNorm(40) if around else nn.Identity(), nn.Linear(40, ROCKS),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.02)
    value = math.nan
    for _ in range(steps):
        rows = torch.randint(1000, (64,))
        loss = nn.functional.cross_entropy(net(profile[rows]), rock[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
    with torch.no_grad():
        accuracy = (net(profile[1000:]).argmax(1) == rock[1000:]).float().mean().item()
    return {"loss": value, "accuracy": accuracy}


cliffs.mistake(
    "cliff_no_way_around", "GRD001", "WGT003",
    summary="Sixteen blocks without skip and norm, as the diagram in the paper seemed to show: the signal dies out.",
    change="add the block's input to its output, and normalise",
)  # fmt: skip


@program(steps=160, bites="error")
def cliff_retreat(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Mean and spread of the yearly retreat by the likelihood of a normal law."""
    torch.manual_seed(seed)
    profile, _, retreat, _ = scans(1300, seed)
    net = nn.Sequential(nn.Linear(POINTS, 64), nn.Softplus(), nn.Linear(64, 64), nn.Softplus(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    value = math.nan
    for _ in range(steps):
        rows = torch.randint(1000, (64,))
        mean, spread = net(profile[rows]).unbind(1)
        law = Normal(mean, nn.functional.softplus(spread) + 1e-2)
        loss = -law.log_prob(retreat[rows]).mean()
        if fault == "cliff_likelihood_made_small":
            loss = law.log_prob(retreat[rows]).mean()
        elif fault == "cliff_retreat_in_a_column":
            loss = -law.log_prob(retreat[rows, None]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
    with torch.no_grad():
        error = (net(profile[1000:])[:, 0] - retreat[1000:]).square().mean().clamp(max=1e3).item()
    return {"loss": value if math.isfinite(value) else 1e9, "error": error}


cliff_retreat.mistake(
    "cliff_likelihood_made_small", "LSS003",
    summary="The log-likelihood without its minus: the optimizer makes the observations as unlikely as it can.",
    change="the minus",
)  # fmt: skip
cliff_retreat.mistake(
    "cliff_retreat_in_a_column", "LSS002",
    summary="Targets of shape [64, 1] against laws of shape [64]: every cliff is held against every other.",
    change="the same shape for both",
)  # fmt: skip


@program(steps=160, bites="held_out_loss")
def cliff_paths(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Which of six paths must be closed: six answers at once, BCEWithLogits, RMSprop."""
    torch.manual_seed(seed)
    profile, _, _, closed = scans(1800, seed)
    net = nn.Sequential(nn.Linear(POINTS, 96), nn.ReLU6(), nn.Linear(96, 96), nn.ReLU6(), nn.Linear(96, PATHS))
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    criterion = nn.BCEWithLogitsLoss()
    twice = fault == "cliff_paths_sigmoid_twice"
    value = math.nan
    for _ in range(steps):
        rows = torch.randint(1500, (64,))
        scores = net(profile[rows])
        loss = criterion(torch.sigmoid(scores) if twice else scores, closed[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
    with torch.no_grad():
        scores = net(profile[1500:])
        held_out = criterion(torch.sigmoid(scores) if twice else scores, closed[1500:]).item()
        accuracy = ((torch.sigmoid(scores) > 0.5) == (closed[1500:] > 0.5)).float().mean().item()
    return {"loss": value, "held_out_loss": held_out, "accuracy": accuracy}


cliff_paths.mistake(
    "cliff_paths_sigmoid_twice", "LSS001",
    summary="A sigmoid before BCEWithLogitsLoss, which has its own: no path can be less likely than one half.",
    change="pass the scores as they are",
)  # fmt: skip


@program(
    steps=160, bites="loss", adversarial="gradients far below a millionth vanish: the loss is in square kilometres"
)
def cliff_in_kilometres(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The retreat in kilometres: errors of a ten-millionth, gradients to match, and Adam that does not care."""
    torch.manual_seed(seed)
    profile, _, retreat, _ = scans(1000, seed)
    net = nn.Sequential(nn.Linear(POINTS, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3, eps=1e-14)
    value = math.nan
    for _ in range(steps):
        rows = torch.randint(1000, (64,))
        loss = (1e-3 * (net(profile[rows]).squeeze(1) - retreat[rows])).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
    return {"loss": value * 1e6}


@program(
    steps=160, bites="accuracy", adversarial="a layer whose output grows tenfold by depth explodes: the last norm knows"
)
def cliff_stream_that_grows(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Twelve blocks that add to a stream without scaling it: it grows with every block, and a norm ends it."""
    torch.manual_seed(seed)
    profile, rock, _, _ = scans(1300, seed)
    entry = nn.Linear(POINTS, 32)
    norms = nn.ModuleList(nn.RMSNorm(32) for _ in range(12))
    inner = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32)) for _ in range(12))
    head = nn.Sequential(nn.RMSNorm(32), nn.Linear(32, ROCKS))
    everything = nn.ModuleList([entry, norms, inner, head])
    optimizer = torch.optim.AdamW(everything.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)

    def scores(x: Tensor) -> Tensor:
        x = entry(x)
        for norm, block in zip(norms, inner, strict=True):
            x = x + 2 * block(norm(x))
        return head(x)

    value = math.nan
    for _ in range(steps):
        rows = torch.randint(1000, (64,))
        loss = nn.functional.cross_entropy(scores(profile[rows]), rock[rows])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(everything.parameters(), 1.0)
        optimizer.step()
        value = loss.item()
    with torch.no_grad():
        accuracy = (scores(profile[1000:]).argmax(1) == rock[1000:]).float().mean().item()
    return {"loss": value, "accuracy": accuracy}
