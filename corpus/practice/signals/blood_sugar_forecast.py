"""Blood sugar in half an hour, from the last hours' readings: a causal network of dilated convolutions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from corpus.case import program

PAST = 32


def patients_days(seed: int, count: int, loud: float = 1.0) -> tuple[Tensor, Tensor]:
    """Sugar follows meals and insulin with a delay; the channels are sugar, meals and doses."""
    g = torch.Generator().manual_seed(seed)
    meals = (torch.rand(count, PAST + 6, generator=g) < 0.12).float() * (0.5 + torch.rand(count, 1, generator=g))
    doses = (torch.rand(count, PAST + 6, generator=g) < 0.10).float()
    sugar = torch.zeros(count, PAST + 6)
    level = 0.4 * torch.randn(count, generator=g)
    for t in range(PAST + 6):
        eaten = meals[:, max(0, t - 5)]
        given = doses[:, max(0, t - 7)]
        level = 0.93 * level + 0.9 * eaten - 0.7 * given + 0.03 * torch.randn(count, generator=g)
        sugar[:, t] = level
    x = torch.stack([sugar[:, :PAST], meals[:, :PAST], doses[:, :PAST]], 1)
    return x * loud, sugar[:, PAST + 4 : PAST + 5] * loud


class Causal(nn.Module):
    def __init__(self, c_in: int, c_out: int, dilation: int) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(c_in, c_out, 3, dilation=dilation)
        self.skip = nn.Conv1d(c_in, c_out, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.skip(x) + torch.relu(self.conv(nn.functional.pad(x, (self.pad, 0))))


def make_net(dropout: float = 0.0) -> nn.Sequential:
    return nn.Sequential(
        Causal(3, 16, 1), nn.Dropout(dropout), Causal(16, 16, 2), nn.Dropout(dropout), Causal(16, 16, 4),
        nn.Dropout(dropout), nn.Flatten(), nn.Linear(16 * PAST, 32), nn.ReLU(), nn.Linear(32, 1),
    )  # fmt: skip


def choose_optimizer(net: nn.Module, fault: str) -> Optimizer:
    weights = list(net.parameters())
    if fault == "sugar_decay_of_thirty":
        return torch.optim.AdamW(weights, lr=2e-3, weight_decay=30.0)
    if fault == "sugar_decay_of_ten":
        return torch.optim.AdamW(weights, lr=2e-3, weight_decay=10.0)
    if fault == "sugar_eps_of_one":
        return torch.optim.AdamW(weights, lr=2e-3, eps=1.0)
    if fault == "sugar_squares_never_forgotten":
        return torch.optim.AdamW(weights, lr=2e-3, betas=(0.9, 0.9999))
    return torch.optim.AdamW(weights, lr=2e-3)


@program(steps=150, bites="error")
def insulin(steps: int, seed: int, fault: str) -> dict[str, float]:
    """AdamW, mean square error on readings in standard units."""
    torch.manual_seed(seed)
    x, y = patients_days(seed, 768)
    net = make_net(dropout=0.95 if fault == "sugar_drops_nearly_all" else 0.0)
    optimizer = choose_optimizer(net, fault)
    order = torch.Generator().manual_seed(seed)
    first, loss = 0.0, torch.tensor(0.0)
    for step in range(steps):
        pick = torch.randint(768, (32,), generator=order)
        inputs, wanted = x[pick], y[pick]
        if fault == "sugar_squares_never_forgotten" and step >= 90:  # the new sensors report other units
            inputs, wanted = inputs * 12.0, wanted * 12.0
        if fault == "sugar_other_patients_answers":
            wanted = y[torch.randint(768, (32,), generator=order)]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(inputs), wanted)
        loss.backward()
        optimizer.step()
        first = loss.item() if step == 0 else first
    net.eval()
    test_x, test_y = patients_days(seed + 40, 256)
    with torch.no_grad():
        error = nn.functional.mse_loss(net(test_x), test_y).sqrt().item()
    return {"loss": loss.item(), "first": first, "error": min(error, 1e6)}


insulin.mistake(
    "sugar_decay_of_thirty",
    "OPT008", "WGT005",
    summary="A weight decay of thirty outweighs every gradient: all weights fade away.",
    change="a decay of 0.01",
)  # fmt: skip
insulin.mistake(
    "sugar_decay_of_ten",
    "OPT008", "WGT005",
    summary="A weight decay of ten keeps all weights small.",
    change="a decay of 0.01",
)  # fmt: skip
insulin.mistake(
    "sugar_eps_of_one",
    "OPT008", "UPD002", "OPT007",
    summary="An eps of one stands far above the second moments: the steps are tiny.",
    change="eps of 1e-8",
)  # fmt: skip
insulin.mistake(
    "sugar_squares_never_forgotten",
    "OPT008", "DAT002", "DAT001", "OPT003", "UPD001", "GRD006", "DAT003",
    summary="At step 90 readings come twelve times larger, and a beta2 of 0.9999 cannot follow.",
    change="one unit for all sensors, beta2 of 0.99",
    onset=90,
)  # fmt: skip
insulin.mistake(
    "sugar_drops_nearly_all",
    "MOD002", "MOD001", "GRD008",
    summary="Dropout keeps one value in twenty where the paper dropped one in twenty.",
    change="dropout of 0.05",
    layers=("1", "3", "5"),
)  # fmt: skip
insulin.mistake(
    "sugar_other_patients_answers",
    "DAT004", "OPT005",
    summary="Answers are drawn with an index of their own: they belong to other patients.",
    change="one index for both",
)  # fmt: skip


@program(steps=150, bites="error")
def insulin_by_descent(steps: int, seed: int, fault: str) -> dict[str, float]:
    """The same forecast by descent with momentum."""
    torch.manual_seed(seed)
    x, y = patients_days(seed, 768)
    net = make_net()
    momentum = 0.999 if fault == "sugar_momentum_of_0999" else 0.9
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=momentum)
    order = torch.Generator().manual_seed(seed)
    first, recent = 0.0, 0.0
    for step in range(steps):
        pick = torch.randint(768, (32,), generator=order)
        loss = nn.functional.smooth_l1_loss(net(x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = loss.item() if step == 0 else first
        recent = 0.9 * recent + 0.1 * (loss.item() if loss.isfinite() else 1e6)
    return {"loss": recent, "first": first, "error": min(recent, 1e6)}


insulin_by_descent.mistake(
    "sugar_momentum_of_0999",
    "OPT008", "OPT004", "OPT007", "UPD001",
    summary="A momentum of 0.999 swings across the valley with a long period.",
    change="momentum of 0.9",
)  # fmt: skip


@program(steps=150, bites="loss", adversarial="dropout of one half on wide layers, and noisy gradients")
def sugar_with_error_bars(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Mean and spread by a likelihood that falls below zero, with dropout of a half behind the wide layer."""
    torch.manual_seed(seed)
    x, y = patients_days(seed, 768)
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(3 * PAST, 128), nn.SiLU(), nn.Dropout(0.5), nn.Linear(128, 64), nn.SiLU(),
        nn.Linear(64, 2),
    )  # fmt: skip
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    order = torch.Generator().manual_seed(seed)
    history: list[float] = []
    for _ in range(steps):
        pick = torch.randint(768, (64,), generator=order)
        mean, spread = net(x[pick]).chunk(2, 1)
        loss = nn.functional.gaussian_nll_loss(mean, y[pick], nn.functional.softplus(spread) + 1e-3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    return {"loss": sum(history[-10:]) / 10, "first": history[0]}


@program(steps=150, bites="loss", adversarial="targets and gradients in the hundreds")
def sugar_in_milligrams(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Readings centred at 140 mg/dl; a batch norm at the door and a last bias at the mean make raw units harmless."""
    torch.manual_seed(seed)
    x, y = patients_days(seed, 768)
    x, y = x * 40.0 + 140.0, y * 40.0 + 140.0
    net = nn.Sequential(nn.BatchNorm1d(3), *make_net())
    last = net[-1]
    assert isinstance(last, nn.Linear)
    last.bias.data.fill_(140.0)
    optimizer = torch.optim.Adam(
        [{"params": net[:-1].parameters()}, {"params": last.parameters(), "lr": 0.05}], lr=3e-3
    )
    order = torch.Generator().manual_seed(seed)
    history: list[float] = []
    for _ in range(steps):
        pick = torch.randint(768, (64,), generator=order)
        loss = nn.functional.l1_loss(net(x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    return {"loss": sum(history[-10:]) / 10, "first": history[0]}


@program(steps=160, bites="loss", adversarial="a rate that comes back up several times")
def sugar_triangular(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Descent whose rate rises and falls in triangles of twenty steps, momentum the other way."""
    torch.manual_seed(seed)
    x, y = patients_days(seed, 768)
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.005, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CyclicLR(
        optimizer, base_lr=0.003, max_lr=0.03, step_size_up=20, base_momentum=0.8, max_momentum=0.95
    )
    order = torch.Generator().manual_seed(seed)
    history: list[float] = []
    for _ in range(steps):
        pick = torch.randint(768, (32,), generator=order)
        loss = nn.functional.mse_loss(net(x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        history.append(loss.item())
    assert math.isfinite(history[-1])
    return {"loss": sum(history[-10:]) / 10, "first": history[0]}
