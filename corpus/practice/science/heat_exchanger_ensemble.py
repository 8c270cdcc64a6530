"""A surrogate for a heat exchanger: six settings in, four temperatures out, an ensemble to know how sure it is."""

from __future__ import annotations

import copy
from itertools import pairwise

import torch
from torch import Tensor, nn

from corpus.case import program


def plant(n: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    s = torch.rand(n, 6, generator=g) * 2 - 1
    flow = torch.exp(0.5 * s[:, 0] - 0.3 * s[:, 1])
    out = torch.stack(
        [
            torch.tanh(flow * s[:, 2]),
            s[:, 3] * s[:, 4] + 0.3 * s[:, 5],
            (s[:, 2] - s[:, 3]).abs() - 0.6,
            torch.sin(2 * s[:, 5]) * flow,
        ],
        dim=1,
    )
    return s, out + 0.03 * torch.randn(n, 4, generator=g)


class Layer(nn.Module):
    """Weights, bias, ReLU, in this order in the report."""

    def __init__(self, inputs: int, outputs: int, last: bool, plain: bool) -> None:
        super().__init__()
        weights = torch.randn(inputs, outputs)
        self.weights = nn.Parameter(weights if plain else weights * (2 / inputs) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        x = torch.addmm(self.bias, x, self.weights)
        return x if self.last else x.clamp(min=0)


def member(plain: bool = False) -> nn.Sequential:
    sizes = [6, 40, 40, 40, 40, 4]
    return nn.Sequential(*(Layer(a, b, i == 4, plain) for i, (a, b) in enumerate(pairwise(sizes))))


class Ensemble(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        plain = fault == "exchanger_plain_normal"
        if fault == "exchanger_members_copied":
            first = member(plain)
            self.members = nn.ModuleList(copy.deepcopy(first) for _ in range(3))
        else:
            self.members = nn.ModuleList(member(plain) for _ in range(3))
        if fault == "exchanger_third_layer_wide":
            for one in self.members:
                one[2].weights.data.mul_(100)  # pyright: ignore

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([m(x) for m in self.members])


@program(steps=150, bites="misfit")
def exchanger(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Three members learn from the same batches and differ by their start."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    s, t = plant(2400, g)
    ensemble = Ensemble(fault)
    opt = torch.optim.Adam(ensemble.parameters(), lr=2e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(2000, (64,), generator=g)
        opt.zero_grad(set_to_none=False)
        loss = (ensemble(s[rows]) - t[rows]).square().mean()
        loss.backward()
        opt.step()
    with torch.no_grad():
        said = ensemble(s[2000:])
    error = (said.mean(0) - t[2000:]).square().mean().item()
    return {"loss": min(loss.item(), 1e9), "misfit": error / (error + 0.3), "spread": said.std(0).mean().item()}


exchanger.mistake(
    "exchanger_plain_normal",
    "WGT003", "GRD002",
    summary="The weights are torch.randn and nothing else: every layer makes its input four times as large.",
    change="divide by the root of the inputs",
)  # fmt: skip
exchanger.mistake(
    "exchanger_members_copied",
    "WGT002",
    summary="The members are deep copies of the first: they stay equal for ever, and the ensemble is always sure.",
    change="build each one",
    layers=("members",),
    bites="spread",
    silent=True,
)
exchanger.mistake(
    "exchanger_third_layer_wide",
    "WGT003", "GRD002",
    summary="The third layer of every member was scaled up by a hundred after it had been drawn.",
    change="leave it as drawn",
    layers=("members.0.2", "members.1.2", "members.2.2"),
)  # fmt: skip


@program(steps=150, bites="error", adversarial="a loss below zero has the wrong sign")
def exchanger_counts(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Counts of valve strokes under a Poisson law: the loss is a likelihood without its constant, far below zero."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    s, _ = plant(2400, g)
    rate = torch.exp(3 + 0.8 * s[:, 0] - 0.5 * s[:, 1] * s[:, 2])
    strokes = torch.poisson(rate, generator=g)
    net = nn.Sequential(nn.Linear(6, 40), nn.SiLU(), nn.Linear(40, 40), nn.SiLU(), nn.Linear(40, 1))
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(2000, (64,), generator=g)
        loss = nn.functional.poisson_nll_loss(net(s[rows]).squeeze(1), strokes[rows])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        opt.step()
    with torch.no_grad():
        error = (net(s[2000:]).squeeze(1) - rate[2000:].log()).square().mean().item()
    return {"loss": loss.item(), "error": error}


@program(steps=150, bites="error", adversarial="a loss that stays high is a plateau")
def exchanger_alarms(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Alarms that come by chance, more often in some settings: the best loss there is lies little below the first."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    s, _ = plant(4000, g)
    chance = torch.sigmoid(1.4 * s[:, 0] - s[:, 3])
    alarm = torch.bernoulli(chance, generator=g)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        rows = torch.randint(4000, (128,), generator=g)
        loss = nn.functional.binary_cross_entropy_with_logits(net(s[rows]).squeeze(1), alarm[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        error = (torch.sigmoid(net(s).squeeze(1)) - chance).square().mean().item()
    return {"loss": loss.item(), "error": error}
