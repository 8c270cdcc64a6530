"""Sonar echoes: which of six objects sent this ping back? Deep one-dimensional convolutions without normalisation."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from corpus.case import program

OBJECTS, LENGTH = 6, 96


def echoes(seed: int, count: int, noise: float = 0.4) -> tuple[Tensor, Tensor]:
    """Every object has an echo of its own; it comes back at any time, in noise."""
    shapes = torch.randn(OBJECTS, 1, 40, generator=torch.Generator().manual_seed(7))
    shapes = functional.avg_pool1d(shapes, 5, 1, 2).squeeze(1)
    shapes = shapes / shapes.std(1, keepdim=True)
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(OBJECTS, (count,), generator=g)
    x = noise * torch.randn(count, LENGTH, generator=g)
    start = torch.randint(LENGTH - 40, (count,), generator=g)
    for i in range(count):
        s = int(start[i])
        x[i, s : s + 40] += shapes[y[i]]
    return x[:, None], y


class Hydrophone(nn.Module):
    def __init__(self, depth: int = 7, act: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, 16, 9, stride=2, padding=4)
        self.convs = nn.ModuleList(nn.Conv1d(16, 16, 5, padding=2) for _ in range(depth))
        self.acts = nn.ModuleList(act() for _ in range(depth + 1))
        self.head = nn.Linear(16, OBJECTS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.acts[0](self.stem(x))
        for conv, act in zip(self.convs, list(self.acts)[1:], strict=True):
            x = act(conv(x))
        return self.head(x.amax(-1))


def he_init(net: nn.Module) -> None:
    for m in net.modules():
        if isinstance(m, nn.Conv1d):
            nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
            if m.bias is not None:
                nn.init.zeros_(m.bias)


def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return (net(x).argmax(1) == y).float().mean().item()


def channels_awake(net: Hydrophone, x: Tensor) -> float:
    """How many channels of the fifth convolution fire at all."""
    with torch.no_grad():
        h = net.acts[0](net.stem(x))
        for conv, act in zip(list(net.convs)[:5], list(net.acts)[1:], strict=False):
            h = act(conv(h))
        return (h > 0).any(-1).any(0).float().sum().item()


def fit(net: nn.Module, opt: torch.optim.Optimizer, x: Tensor, y: Tensor, steps: int, g: torch.Generator) -> float:
    last = 0.0
    for _ in range(steps):
        pick = torch.randint(len(x), (48,), generator=g)
        opt.zero_grad()
        loss = functional.cross_entropy(net(x[pick]), y[pick])
        loss.backward()
        opt.step()
        last = loss.item()
    return last if last == last else 1e9


@program(steps=160, bites="accuracy")
def sonar(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Eight convolutions in a row, Nesterov momentum."""
    torch.manual_seed(seed)
    x, y = echoes(seed, 800)
    net = Hydrophone(act=nn.Sigmoid if fault == "sonar_sigmoids_all_the_way_down" else nn.ReLU)
    he_init(net)
    weights = dict(net.named_parameters())
    with torch.no_grad():
        if fault == "sonar_filters_at_a_hundredth":
            for name in weights:
                if name.endswith("weight") and "head" not in name:
                    weights[name].normal_(0, 0.01)
        if fault == "sonar_one_bank_too_wide":
            weights["convs.3.weight"].mul_(60)
        if fault == "sonar_detector_bias_inside":  # the prior of the detection head, on the wrong layer
            weights["convs.2.bias"].fill_(-9.0)
        if fault == "sonar_most_channels_down":
            weights["convs.4.bias"][:13] = -9.0
    opt = torch.optim.SGD(net.parameters(), lr=0.004, momentum=0.9, nesterov=True)
    loss = fit(net, opt, x, y, steps, torch.Generator().manual_seed(seed))
    x_test, y_test = echoes(seed + 1000, 300)
    return {
        "loss": min(loss, 1e9), "accuracy": accuracy(net, x_test, y_test), "awake": channels_awake(net, x_test),
    }  # fmt: skip


sonar.mistake(
    "sonar_sigmoids_all_the_way_down",
    "GRD001", "ACT003",
    summary="Sigmoids after all eight convolutions, copied from a textbook of the nineties.",
    change="ReLU after every convolution",
)  # fmt: skip
sonar.mistake(
    "sonar_filters_at_a_hundredth",
    "WGT003", "GRD001", "ACT003",
    summary="All filters are drawn from a normal of standard deviation 0.01, without regard to their fan-in.",
    change="He initialisation",
)  # fmt: skip
sonar.mistake(
    "sonar_one_bank_too_wide",
    "WGT003", "GRD002", "ACT001",
    summary="The fourth bank of filters is loaded sixty times too large: its gain was applied twice.",
    change="the right scale for convs.3",
    layers=("convs.3", "acts.4"),
)  # fmt: skip
sonar.mistake(
    "sonar_detector_bias_inside",
    "ACT001", "GRD004", "WGT003",
    summary="The bias of -9 that is meant for a detection head is written into a hidden convolution.",
    change="a bias of zero in convs.2",
    layers=("convs.2", "acts.3"),
)  # fmt: skip
sonar.mistake(
    "sonar_most_channels_down",
    "ACT001", "GRD004", "WGT003",
    summary="A loader fills thirteen of the sixteen biases of one convolution with -9.",
    change="biases of zero in convs.4",
    layers=("convs.4", "acts.5"),
    bites="awake",
    silent=True,
)  # fmt: skip


@program(steps=140, bites="accuracy", adversarial="inputs of a ten-thousandth are badly scaled: a norm comes first")
def sonar_in_volts(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The echo in volts, about 1e-4; the first module is an instance norm."""
    torch.manual_seed(seed)
    x, y = echoes(seed, 800)
    net = nn.Sequential(nn.InstanceNorm1d(1, eps=1e-14), Hydrophone(depth=4))
    he_init(net)
    opt = torch.optim.NAdam(net.parameters(), lr=3e-3)
    loss = fit(net, opt, x * 1e-4, y, steps, torch.Generator().manual_seed(seed))
    x_test, y_test = echoes(seed + 1000, 300)
    return {"loss": loss, "accuracy": accuracy(net, x_test * 1e-4, y_test)}


class Loudest(nn.Module):
    """Keep the loudest tenth of the channel's samples."""

    def forward(self, x: Tensor) -> Tensor:
        edge = x.kthvalue(int(0.9 * x.shape[-1]), dim=-1, keepdim=True).values
        return torch.relu(x - edge.detach())


@program(steps=160, bites="accuracy", adversarial="nine tenths of the activations are zero: sparse, yet all alive")
def sonar_loudest_only(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Only the loudest tenth of each channel goes on to the next layer."""
    torch.manual_seed(seed)
    x, y = echoes(seed, 800)
    net = Hydrophone(depth=2, act=Loudest)
    he_init(net)
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    loss = fit(net, opt, x, y, steps, torch.Generator().manual_seed(seed))
    return {"loss": loss, "accuracy": accuracy(net, *echoes(seed + 1000, 300))}


@program(steps=150, bites="loss")
def sonar_distance(steps: int, seed: int, fault: str) -> dict[str, float]:
    """How far away is the object: a regression of the time of the echo, smooth L1, one cycle of the rate."""
    torch.manual_seed(seed)
    x, _ = echoes(seed, 800, noise=0.1)
    where = x.squeeze(1).abs().cumsum(1)
    target = (where < where[:, -1:] / 2).float().mean(1) * 4 - 2
    net = nn.Sequential(
        nn.Conv1d(1, 12, 9, stride=4, padding=4), nn.GELU(), nn.Conv1d(12, 12, 5, padding=2), nn.GELU(),
        nn.Flatten(), nn.LayerNorm(288), nn.Linear(288, 48), nn.GELU(), nn.Linear(48, 1),
    )  # fmt: skip
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    cycle = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=3e-3, total_steps=max(steps, 4))
    loss = torch.zeros(())
    g = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        pick = torch.randint(len(x), (48,), generator=g)
        opt.zero_grad()
        loss = functional.smooth_l1_loss(net(x[pick]).squeeze(1), target[pick], beta=0.1)
        loss.backward()
        opt.step()
        cycle.step()
    return {"loss": loss.item()}
