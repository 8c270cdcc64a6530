"""Which spring does a sample of brine come from? Twelve ion concentrations, six springs, plain deep networks."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from corpus.case import program

SPRINGS = 6


def samples(seed: int, count: int = 2200) -> tuple[Tensor, Tensor]:
    """Every spring is two clouds of ions; the labels need a bent border."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(SPRINGS * 2, 12)) * 1.3
    cloud = rng.integers(0, SPRINGS * 2, count)
    ions = centres[cloud] + rng.normal(size=(count, 12)) * 0.75
    ions = (ions - ions.mean(0)) / ions.std(0)
    return torch.tensor(ions, dtype=torch.float32), torch.tensor(cloud % SPRINGS)


def column(depth: int, width: int, act: type[nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(12, width), act()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), act()]
    net = nn.Sequential(*layers, nn.Linear(width, SPRINGS))
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return net


@program(steps=180, bites="accuracy")
def brine_springs(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Eight hidden ReLU layers with He initialisation, SGD with Nesterov momentum, batches of 50."""
    torch.manual_seed(seed)
    x, y = samples(seed)
    train_x, train_y, test_x, test_y = x[:2000], y[:2000], x[2000:], y[2000:]
    net = column(8, 40, nn.Sigmoid if fault == "brine_sigmoid_throughout" else nn.ReLU)
    if fault == "brine_fourth_layer_loud":
        nn.init.normal_(net.get_parameter("6.weight"), std=25.0)
    if fault == "brine_every_weight_the_same":
        for p in net.parameters():
            nn.init.constant_(p, 0.03)
    lr = 0.08 if fault == "brine_boiled_over" else 0.01
    opt = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9, nesterov=True)
    lossf = nn.CrossEntropyLoss()
    loss = torch.zeros(())
    for step in range(steps):
        if fault == "brine_rate_of_phase_two" and step == 90:
            for group in opt.param_groups:
                group["lr"] = 0.12  # the second phase was written for another loss
        at = torch.randint(0, 2000, (50,))
        opt.zero_grad()
        loss = lossf(net(train_x[at]), train_y[at])
        loss.backward()
        opt.step()
    with torch.no_grad():
        accuracy = (net(test_x).argmax(1) == test_y).float().mean().item()
    return {"loss": loss.item() if loss.isfinite() else 1e9, "accuracy": accuracy}


brine_springs.mistake(
    "brine_sigmoid_throughout",
    "GRD001", "ACT003", "ACT002", "OPT005", "WGT003", "OPT002",
    summary="Sigmoid between all nine matrices: each passes on a quarter of the gradient at best.",
    change="ReLU between the layers",
)  # fmt: skip
brine_springs.mistake(
    "brine_fourth_layer_loud",
    "WGT003", "WGT004", "GRD002", "OPT001", "ACT001", "UPD001", "NUM001", "NUM002", "NUM004",
    summary="The fourth matrix is drawn with a standard deviation of 25, in place of 0.25: a lost decimal point.",
    change="He initialisation for the fourth matrix",
    layers=("6", "7"),
)  # fmt: skip
brine_springs.mistake(
    "brine_every_weight_the_same",
    "WGT002", "ACT003", "OPT005",
    summary="Every weight and bias starts at 0.03: all units of a layer stay twins.",
    change="draw the weights at random",
)  # fmt: skip
brine_springs.mistake(
    "brine_boiled_over",
    "OPT007", "UPD001", "ACT001", "OPT001", "OPT004", "OPT003", "GRD006", "GRD005",
    summary="A learning rate of 0.08, eight times too high for a network this deep: it jolts, and many units die.",
    change="a rate of 0.01",
)  # fmt: skip
brine_springs.mistake(
    "brine_rate_of_phase_two",
    "OPT007", "UPD001", "OPT001", "OPT003", "ACT001", "GRD002", "NUM002", "NUM001", "NUM003", "NUM004", "GRD006",
    summary="At step 90 the second phase sets a rate of 0.12, and the network dies.",
    change="a second phase with a smaller rate",
    onset=90,
)  # fmt: skip


@program(steps=200, adversarial="the gradients become tiny: they vanish")
def brine_few_known_by_heart(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Forty samples, the whole set in every step, until the loss is a few thousandths."""
    torch.manual_seed(seed)
    x, y = samples(seed, 40)
    net = column(3, 64, nn.ReLU)
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
    return {"loss": loss.item()}


@program(steps=150, adversarial="gradient norms in the thousands: they explode")
def brine_summed_over_the_batch(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The loss is a sum over 200 samples and the rate is as much smaller."""
    torch.manual_seed(seed)
    x, y = samples(seed)
    net = column(4, 48, nn.LeakyReLU)
    opt = torch.optim.SGD(net.parameters(), lr=0.02 / 200, momentum=0.9)
    loss = torch.zeros(())
    for _ in range(steps):
        at = torch.randint(0, len(x), (200,))
        loss = nn.functional.cross_entropy(net(x[at]), y[at], reduction="sum")
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item() / 200}


@program(steps=150)
def brine_self_normalising(steps: int, seed: int, fault: str) -> dict[str, float]:
    """SELU with alpha dropout and LeCun initialisation, Adamax."""
    torch.manual_seed(seed)
    x, y = samples(seed)
    net = nn.Sequential(
        nn.Linear(12, 48), nn.SELU(), nn.AlphaDropout(0.05), nn.Linear(48, 48), nn.SELU(), nn.Linear(48, SPRINGS)
    )
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
    opt = torch.optim.Adamax(net.parameters(), lr=0.01)
    loss = torch.zeros(())
    for _ in range(steps):
        at = torch.randperm(len(x))[:64]
        loss = nn.functional.cross_entropy(net(x[at]), y[at])
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss.item()}
