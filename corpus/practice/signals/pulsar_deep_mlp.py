"""Folded radio profiles: pulsar, noise or a passing aeroplane? A deep plain network, as in the notebook of a thesis."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from corpus.case import program

BINS, KINDS = 64, 5


def profiles(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """One turn of the star in 64 bins: a pulse, two pulses, a broad one, a drift, or nothing."""
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(KINDS, (n,), generator=g)
    phase = torch.linspace(0, 1, BINS)
    centre = 0.3 + 0.2 * torch.rand(n, 1, generator=g)

    def bump(at: Tensor, width: float) -> Tensor:
        return torch.exp(-0.5 * ((phase - at) / width) ** 2)

    shapes = torch.stack(
        [
            bump(centre, 0.03),
            bump(centre, 0.03) + 0.7 * bump(centre + 0.35, 0.03),
            bump(centre, 0.12),
            (phase - 0.5).expand(n, BINS) * 1.5,
            torch.zeros(n, BINS),
        ]
    )
    curve = shapes[kind, torch.arange(n)] + 0.25 * torch.randn(n, BINS, generator=g)
    return curve, kind


def build(nonlinearity: type[nn.Module], depth: int, width: int = 48) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(BINS, width), nonlinearity())
    for _ in range(depth - 1):
        net.append(nn.Linear(width, width)).append(nonlinearity())
    return net.append(nn.Linear(width, KINDS))


def draw_weights(net: nn.Module, fault: str) -> None:
    for layer in net.modules():
        if not isinstance(layer, nn.Linear):
            continue
        nn.init.zeros_(layer.bias)
        match fault:
            case "pulsar_hundredths":
                nn.init.normal_(layer.weight, std=0.01)
            case "pulsar_somewhat_small":
                nn.init.normal_(layer.weight, std=0.06)
            case "pulsar_standard_normal":
                nn.init.normal_(layer.weight)
            case "pulsar_one_number_for_all":
                nn.init.constant_(layer.weight, 0.03)
            case "pulsar_zeros_to_be_neutral":
                nn.init.zeros_(layer.weight)
            case _:
                nn.init.xavier_normal_(layer.weight, gain=1.0 if fault == "pulsar_sigmoids" else 5 / 3)


@program(steps=200, bites="accuracy")
def pulsars(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Eight tanh layers by Nesterov's descent on standardised profiles."""
    torch.manual_seed(seed)
    curves, kinds = profiles(2000, seed)
    if fault == "pulsar_counts_of_the_receiver":
        curves = 40 * curves + 25
    held_x, held_y = curves[1600:], kinds[1600:]
    curves, kinds = curves[:1600], kinds[:1600]

    net = build(nn.Sigmoid if fault == "pulsar_sigmoids" else nn.Tanh, depth=8)
    draw_weights(net, fault)
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    criterion = nn.CrossEntropyLoss()

    last = math.nan
    for _ in range(steps):
        pick = torch.randint(len(curves), (64,))
        opt.zero_grad()
        loss = criterion(net(curves[pick]), kinds[pick])
        loss.backward()
        opt.step()
        last = loss.item()
    with torch.no_grad():
        accuracy = (net(held_x).argmax(1) == held_y).float().mean().item()
    return {"loss": last if math.isfinite(last) else 1e9, "accuracy": accuracy}


pulsars.mistake(
    "pulsar_sigmoids", "GRD001", "WGT003",
    summary="Eight layers of sigmoids: next to nothing of the gradient arrives at the bottom.",
    change="tanh or ReLU between the layers",
)  # fmt: skip
pulsars.mistake(
    "pulsar_hundredths", "WGT003", "GRD001",
    summary="All weights drawn with a deviation of 0.01, as in the old tutorial: the signal fades layer by layer.",
    change="Xavier's deviation",
)  # fmt: skip
pulsars.mistake(
    "pulsar_somewhat_small", "WGT003", "GRD001",
    summary="All weights drawn with a deviation of 0.06: a quarter of what it should be, in each of nine layers.",
    change="Xavier's deviation",
)  # fmt: skip
pulsars.mistake(
    "pulsar_standard_normal", "WGT003", "ACT002", "GRD002",
    summary="All weights from torch.randn: every tanh starts at its limit, and gradients grow towards the input.",
    change="Xavier's deviation",
)  # fmt: skip
pulsars.mistake(
    "pulsar_one_number_for_all", "WGT002",
    summary="Every weight of every layer starts at 0.03: all units of a layer stay each other's copies.",
    change="random weights",
)  # fmt: skip
pulsars.mistake(
    "pulsar_zeros_to_be_neutral", "WGT002", "GRD004",
    summary="Every weight starts at zero: no layer but the last bias ever gets a gradient.",
    change="random weights",
)  # fmt: skip
pulsars.mistake(
    "pulsar_counts_of_the_receiver", "DAT001", "ACT002",
    summary="The profiles come in the receiver's counts, forty times the scale and off centre: the first tanh is full.",
    change="standardise the profiles",
)  # fmt: skip


class Maxed(nn.Module):
    """Two halves, the larger of each pair goes on."""

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return torch.maximum(a, b)


@program(
    steps=160, bites="accuracy", adversarial="raw inputs in the thousands are always a fault: here a norm is first"
)
def pulsar_counts_with_a_norm(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The receiver's counts go into a batch norm before anything else."""
    torch.manual_seed(seed)
    curves, kinds = profiles(1600, seed)
    curves = 300 * curves + 4000
    net = nn.Sequential(
        nn.BatchNorm1d(BINS), nn.Linear(BINS, 64), nn.GELU(), nn.Linear(64, 64), Maxed(), nn.Linear(32, KINDS)
    )
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    last = math.nan
    for _ in range(steps):
        pick = torch.randint(1200, (64,))
        loss = nn.functional.cross_entropy(net(curves[pick]), kinds[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
        last = loss.item()
    net.eval()
    with torch.no_grad():
        accuracy = (net(curves[1200:]).argmax(1) == kinds[1200:]).float().mean().item()
    return {"loss": last, "accuracy": accuracy}


@program(steps=160, bites="accuracy", adversarial="a deep net of saturating units must starve: this one has skips")
def pulsar_sixteen_tanhs_with_skips(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Sixteen tanh layers, each added to what it got, half as strong as it came."""
    torch.manual_seed(seed)
    curves, kinds = profiles(1600, seed)
    entry, layers, head = nn.Linear(BINS, 32), nn.ModuleList(nn.Linear(32, 32) for _ in range(16)), nn.Linear(32, KINDS)
    everything = nn.ModuleList([entry, layers, head])
    opt = torch.optim.SGD(everything.parameters(), lr=0.02, momentum=0.9)

    def logits(x: Tensor) -> Tensor:
        h = torch.tanh(entry(x))
        for layer in layers:
            h = h + 0.5 * torch.tanh(layer(h))
        return head(h)

    last = math.nan
    for _ in range(steps):
        pick = torch.randint(1200, (64,))
        loss = nn.functional.cross_entropy(logits(curves[pick]), kinds[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
        last = loss.item()
    accuracy = (logits(curves[1200:]).argmax(1) == kinds[1200:]).float().mean().item()
    return {"loss": last, "accuracy": accuracy}


@program(
    steps=150, bites="loss", adversarial="an unsupervised loss below zero has the wrong sign: a density may exceed 1"
)
def pulsar_density(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The brightness of a bin given the bins before it, as a mixture of three normals: the loss falls below zero."""
    torch.manual_seed(seed)
    curves, _ = profiles(1000, seed)
    smooth = nn.functional.avg_pool1d(curves[:, None], 8).squeeze(1) * 0.5
    net = nn.Sequential(nn.Linear(7, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 9))
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    last = math.nan
    for _ in range(steps):
        rows = smooth[torch.randint(1000, (128,))]
        weight, mean, spread = net(rows[:, :7]).chunk(3, dim=1)
        normal = torch.distributions.Normal(mean, nn.functional.softplus(spread) + 0.01)
        loss = -(weight.log_softmax(1) + normal.log_prob(rows[:, 7:])).logsumexp(1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        last = loss.item()
    return {"loss": last}
