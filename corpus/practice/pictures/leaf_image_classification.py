"""Pressed leaves on small cards: a convolutional network tells the kinds apart."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from corpus.case import program

SIDE = 16


def press(seed, count=900):
    """Outlines r(angle) with two to six lobes, anywhere on the card, in any direction, on grainy paper."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:SIDE, 0:SIDE]
    kind = rng.integers(0, 5, count)
    y = rng.uniform(6.5, 8.5, (count, 1, 1))
    x = rng.uniform(6.5, 8.5, (count, 1, 1))
    angle = np.arctan2(rows - y, columns - x) + rng.uniform(0, 0.5, (count, 1, 1))
    radius = 4.6 + 2.2 * np.cos((kind[:, None, None] + 2) * angle)
    leaf = (np.hypot(rows - y, columns - x) < radius) + 0.35 * rng.standard_normal((count, SIDE, SIDE))
    leaf = (leaf - leaf.mean()) / leaf.std()
    return torch.tensor(leaf[:, None], dtype=torch.float32), torch.tensor(kind)


class LeafNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, padding=1)
        self.conv2 = nn.Conv2d(12, 24, 3, padding=1)
        self.relu2 = nn.ReLU()
        self.conv3 = nn.Conv2d(24, 24, 3, padding=1)
        self.fc1 = nn.Linear(24 * 4 * 4, 48)
        self.fc2 = nn.Linear(48, 5)
        for m in self.modules():
            if isinstance(m, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
                if m.bias is not None:
                    m.bias.data.zero_()
        with torch.no_grad():
            self.fc2.weight.mul_(0.1)

    def forward(self, x):
        x = functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = self.relu2(self.conv2(x))
        x = functional.max_pool2d(torch.relu(self.conv3(x)), 2)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


@program(steps=150, bites="accuracy")
def leaf_kinds(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Three convolutions and two linear layers by He's rule, momentum, cosine schedule."""
    torch.manual_seed(seed)
    x, y = press(seed)
    net = LeafNet()
    with torch.no_grad():
        if fault == "leaf_second_conv_wide":
            net.conv2.weight.mul_(60)
        if fault == "leaf_third_conv_somewhat_wide":
            net.conv3.weight.mul_(25)
        if fault == "leaf_drawn_unscaled":
            for p in net.parameters():
                if p.dim() > 1:
                    p.copy_(torch.randn_like(p))
        if fault == "leaf_focal_bias_on_the_wrong_layer":
            net.conv2.bias = nn.Parameter(torch.full((24,), -12.0))
        if fault == "leaf_filters_all_ones":
            nn.init.constant_(net.conv1.weight, 0.1)
            nn.init.constant_(net.conv2.weight, 0.02)
            nn.init.constant_(net.conv3.weight, 0.01)
    rate = {"leaf_rate_in_percent": 1.5, "leaf_rate_of_a_fifth": 0.2}.get(fault, 0.015)
    sgd = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, T_max=200)
    draw = torch.Generator().manual_seed(seed)
    loss = torch.zeros(())
    early = net.conv1.weight.detach().clone()
    for step in range(steps):
        if step == 25:
            early = net.conv1.weight.detach().clone()
            if fault == "leaf_frozen_for_the_saliency_map":
                for p in net.conv1.parameters():  # a look at the filters; nobody turns this on again
                    p.requires_grad_(False)
        if step == 60 and fault == "leaf_calibrated_in_place":
            with torch.no_grad():  # thresholds of another camera
                net.get_parameter("conv3.bias").sub_(30)
        pick = torch.randint(700, (32,), generator=draw)
        loss = functional.cross_entropy(net(x[pick]), y[pick])
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        cosine.step()
    with torch.no_grad():
        right = (net(x[700:]).argmax(1) == y[700:]).float().mean().item()
    moved = (net.conv1.weight.detach() - early).norm().item()
    return {
        "loss": loss.item() if loss.isfinite() else 1e6,
        "accuracy": right,
        "moved": min(moved, 10.0) if moved == moved else 10.0,
    }


leaf_kinds.mistake(
    "leaf_second_conv_wide",
    "WGT003", "GRD002", "UPD001", "OPT001", "NUM001", "NUM002",
    summary="The second convolution was loaded from a file in other units: its weights are sixty times too wide.",
    change="draw the second convolution again",
    layers=("conv2",),
)  # fmt: skip
leaf_kinds.mistake(
    "leaf_third_conv_somewhat_wide",
    "WGT003", "GRD002", "UPD001", "OPT001", "NUM001", "NUM002",
    summary="The third convolution starts twenty-five times too wide.",
    change="draw the third convolution by He's rule",
    layers=("conv3",),
)  # fmt: skip
leaf_kinds.mistake(
    "leaf_drawn_unscaled",
    "WGT003", "GRD002", "NUM001", "NUM002", "NUM004", "NUM003", "OPT001", "UPD001",
    summary="All weights are torch.randn, without the root of the fan-in.",
    change="He's rule",
)  # fmt: skip
leaf_kinds.mistake(
    "leaf_focal_bias_on_the_wrong_layer",
    "ACT001",
    "GRD004",
    summary="The strongly negative bias meant for a detector's output is on the second convolution: it never fires.",
    change="a bias of zero",
    layers=("conv2", "relu2"),
)
leaf_kinds.mistake(
    "leaf_filters_all_ones",
    "WGT002",
    summary="Every convolution begins with one constant in all its filters: they stay copies of each other.",
    change="draw the filters at random",
    layers=("conv1", "conv2", "conv3"),
)
leaf_kinds.mistake(
    "leaf_rate_in_percent",
    "OPT007", "UPD001", "ACT001", "OPT001", "GRD002", "OPT003", "NUM001", "NUM002",
    summary="The rate of 1.5 was meant in percent: the first updates kill the rectified units.",
    change="a learning rate of 0.015",
)  # fmt: skip
leaf_kinds.mistake(
    "leaf_rate_of_a_fifth",
    "OPT007", "UPD001", "ACT001", "OPT001", "GRD002", "OPT003", "NUM001", "NUM002",
    summary="A rate of 0.2 for a network without normalisation: most units die in the first steps.",
    change="a learning rate of 0.015",
)  # fmt: skip
leaf_kinds.mistake(
    "leaf_calibrated_in_place",
    "ACT001",
    "GRD004",
    summary="A calibration at step 60 writes into the bias of the third convolution: no filter of it fires again.",
    change="calibrate a copy",
    layers=("conv3",),
    onset=60,
)
leaf_kinds.mistake(
    "leaf_frozen_for_the_saliency_map",
    "UPD003",
    "GRD003",
    summary="To draw the filters the first convolution is frozen at step 25 and never thawed.",
    change="requires_grad_(True) after the plot",
    layers=("conv1",),
    onset=25,
    bites="moved",
    silent=True,
)


class ScaledBranch(nn.Module):
    """Two weight-standardised convolutions behind a gain that starts at zero."""

    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.GroupNorm(4, width)
        self.gain = nn.Parameter(torch.zeros(()))

    @staticmethod
    def standard(conv, h):
        w = conv.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) * w[0].numel() ** 0.5 + 1e-5)
        return functional.conv2d(h, w, conv.bias, padding=1)

    def forward(self, h):
        return h + self.gain * self.standard(self.second, functional.silu(self.standard(self.first, self.norm(h))))


@program(steps=120, adversarial="a gradient of exactly zero at the start means that a layer is dead")
def leaf_branches_from_zero(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Residual branches with standardised weights whose gain starts at zero, label smoothing, AdamW."""
    torch.manual_seed(seed)
    x, y = press(seed + 50)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 4, stride=4), ScaledBranch(16), ScaledBranch(16), nn.Flatten(), nn.Linear(256, 5)
    )
    adam = torch.optim.AdamW(net.parameters(), lr=3e-3)
    draw = torch.Generator().manual_seed(seed)
    loss = torch.zeros(())
    for _ in range(steps):
        pick = torch.randint(700, (32,), generator=draw)
        loss = functional.cross_entropy(net(x[pick]), y[pick], label_smoothing=0.1)
        adam.zero_grad()
        loss.backward()
        adam.step()
    with torch.no_grad():
        right = (net(x[700:]).argmax(1) == y[700:]).float().mean().item()
    return {"loss": loss.item(), "accuracy": right}


@program(steps=150, adversarial="most activations are zero, so the units must be dead")
def leaf_only_the_strongest(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A wide layer in which only the ten strongest of 160 units speak, other ones for every leaf."""
    torch.manual_seed(seed)
    x, y = press(seed + 60)
    filters, wide, out = nn.Conv2d(1, 16, 5, stride=2), nn.Linear(576, 160), nn.Linear(160, 5)
    net = nn.ModuleList([filters, wide, out])
    sgd = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    draw = torch.Generator().manual_seed(seed)

    def answer(pictures):
        h = wide(functional.leaky_relu(filters(pictures)).flatten(1))
        best, where = h.topk(10, dim=1)
        return out(torch.zeros_like(h).scatter(1, where, best))

    loss = torch.zeros(())
    for _ in range(steps):
        pick = torch.randint(700, (48,), generator=draw)
        loss = functional.cross_entropy(answer(x[pick]), y[pick])
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    with torch.no_grad():
        right = (answer(x[700:]).argmax(1) == y[700:]).float().mean().item()
    return {"loss": loss.item(), "accuracy": right}
