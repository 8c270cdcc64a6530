"""Tomorrow's air pressure from the last days: dilated causal convolutions over several stations."""

from __future__ import annotations

import math

import torch
import torch.nn as nn

from corpus.case import program


def make_series(seed, length=1400, stations=3):
    g = torch.Generator().manual_seed(seed + 2024)
    t = torch.arange(length).float()
    out = []
    for s in range(stations):
        slow = torch.sin(t / 17 + s) + 0.7 * torch.sin(t / 5.3 + 2 * s) * torch.cos(t / 41)
        out.append(slow + 0.1 * torch.randn(length, generator=g))
    return torch.stack(out)


def windows(series, starts, size=24):
    idx = starts[:, None] + torch.arange(size)
    x = series[:, idx].transpose(0, 1)
    y = series[0, starts + size + 2]
    return x, y


class CausalConv(nn.Module):
    def __init__(self, cin, cout, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(cin, cout, 3, dilation=dilation)

    def forward(self, x):
        return self.conv(nn.functional.pad(x, (self.pad, 0)))


class TCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = CausalConv(3, 24, 1)
        self.c2 = CausalConv(24, 24, 2)
        self.c3 = CausalConv(24, 24, 4)
        self.last = nn.Linear(24, 1)

    def forward(self, x):
        h = torch.nn.functional.elu(self.c1(x))
        h = h + torch.nn.functional.elu(self.c2(h))
        h = h + torch.nn.functional.elu(self.c3(h))
        return self.last(h[..., -1]).squeeze(-1)


@program(steps=150, bites="error")
def barometer(steps, seed, fault):
    """Three steps ahead by a temporal convolutional net with AMSGrad."""
    torch.manual_seed(seed)
    series = make_series(seed)
    if fault == "barometer_in_pascal":
        series = 101325 + 900 * series
    target_mean, target_std = (101325.0, 900.0) if fault == "barometer_in_pascal" else (0.0, 1.0)
    net = TCN()
    eps = 10.0 if fault == "barometer_eps_of_the_blog" else 1e-8
    opt = torch.optim.Adam(net.parameters(), lr=6e-3, betas=(0.9, 0.95), amsgrad=True, eps=eps)
    decay = torch.optim.lr_scheduler.ExponentialLR(opt, 0.6 if fault == "barometer_fades_every_batch" else 0.995)
    tail = []
    for it in range(steps):
        starts = torch.randint(0, 1000, (48,))
        x, y = windows(series, starts)
        if fault == "barometer_station_struck" and it in (95, 96):
            x = x.clone()
            x[:, 1] = 9999.0
        pred = net(x)
        loss = nn.functional.mse_loss(pred, (y - target_mean) / target_std)
        opt.zero_grad()
        loss.backward()
        opt.step()
        decay.step()
        if it >= 80:
            tail.append(loss.item())
    with torch.no_grad():
        x, y = windows(series, torch.arange(1050, 1350))
        test = nn.functional.mse_loss(net(x), (y - target_mean) / target_std).item()
    worst = max(tail) if tail else 0.0
    return {"error": min(test**0.5, 1e6) if math.isfinite(test) else 1e6, "worst": min(worst, 1e9)}


barometer.mistake(
    "barometer_in_pascal",
    "DAT001",
    summary="The pressures go in as pascals, a hundred thousand each; only the target is standardised.",
    change="standardise the inputs, too",
    layers=("c1",),
)  # fmt: skip
barometer.mistake(
    "barometer_eps_of_the_blog",
    "OPT008", "UPD002", "OPT007",
    summary="Adam's eps is 10: the second moment is without effect and steps are tiny.",
    change="eps 1e-8",
)  # fmt: skip
barometer.mistake(
    "barometer_fades_every_batch",
    "OPT007", "UPD002",
    summary="An exponential decay of 0.6 is stepped with every batch: after twenty of them the rate is nothing.",
    change="step it once an epoch",
)  # fmt: skip
barometer.mistake(
    "barometer_station_struck",
    "DAT002", "OPT003", "GRD006", "DAT001",
    summary="A station struck by lightning reports 9999 in two batches.",
    change="mask missing values",
    onset=95,
    bites="worst",
)  # fmt: skip
