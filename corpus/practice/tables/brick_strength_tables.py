"""Bricks from a kiln: how strong is a brick, and will it crack? Tables, small networks, plain scripts."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from corpus.case import program

BRICKS, COLUMNS = 1600, 12


def bricks(seed: int, noise: float = 0.1):
    """Clay, water, heat, … in standard units; strength depends on products of them, cracks on a curved border."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(BRICKS, COLUMNS))
    strength = x[:, 0] + 0.8 * x[:, 1] * x[:, 2] - 0.7 * np.abs(x[:, 3]) + 0.5 * np.sin(2 * x[:, 4])
    strength = (strength - strength.mean()) / strength.std() + noise * rng.normal(size=BRICKS)
    crack = (x[:, 5] ** 2 + x[:, 6] * x[:, 7] + 0.8 * x[:, 8] > 1.0).astype(np.int64)
    return torch.tensor(x).float(), torch.tensor(strength).float(), torch.tensor(crack)


def finite(value: float) -> float:
    return min(value, 1e6) if math.isfinite(value) else 1e6


@program(steps=180)
def kiln_strength(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Strength by a three-layer network, SGD with momentum, the rate falls by a tenth after every epoch."""
    torch.manual_seed(seed)
    x, y, _ = bricks(seed)
    net = nn.Sequential(nn.Linear(COLUMNS, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    momentum = 0.999 if fault == "kiln_flywheel" else 0.9
    sgd = torch.optim.SGD(net.parameters(), lr=0.06, momentum=momentum)
    decay = torch.optim.lr_scheduler.ExponentialLR(sgd, gamma=0.9)
    batches_per_epoch, order = 1280 // 64, torch.arange(1280)
    for step in range(steps):
        if step % batches_per_epoch == 0:
            order = torch.randperm(1280)
            if step and fault != "kiln_cools_with_every_batch":
                decay.step()
        idx = order[step % batches_per_epoch * 64 :][:64]
        loss = nn.functional.mse_loss(net(x[idx]).squeeze(1), y[idx])
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        if fault == "kiln_cools_with_every_batch":
            decay.step()
    with torch.no_grad():
        test = nn.functional.mse_loss(net(x[1280:]).squeeze(1), y[1280:]).item()
    return {"loss": finite(test)}


kiln_strength.mistake(
    "kiln_cools_with_every_batch",
    "OPT007", "UPD002", "OPT002", "OPT005",
    summary="The decay that is meant for epochs is stepped after every batch: after fifty of them the rate is nothing.",
    change="scheduler.step() once per epoch",
)  # fmt: skip
kiln_strength.mistake(
    "kiln_flywheel",
    "OPT008", "OPT004", "OPT001", "UPD001", "GRD005", "OPT007",
    summary="Momentum is 0.999: the weights swing past their goal for hundreds of steps.",
    change="momentum=0.9",
)  # fmt: skip


@program(steps=180, bites="accuracy")
def kiln_cracks(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Will a brick crack? AdamW with a short warm-up."""
    torch.manual_seed(seed)
    x, _, y = bricks(seed)
    net = nn.Sequential(nn.Linear(COLUMNS, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 2))
    decay = 5.0 if fault == "kiln_decay_of_five" else 0.01
    eps = 0.1 if fault == "kiln_eps_of_a_tenth" else 1e-8
    base = 8e-3
    adam = torch.optim.AdamW(net.parameters(), lr=base, weight_decay=decay, eps=eps)

    def schedule(step: int) -> float:
        factor = min(1.0, (step + 1) / 10)
        return base * base * factor if fault == "kiln_rate_times_rate" else factor

    warmup = torch.optim.lr_scheduler.LambdaLR(adam, schedule)
    loss = torch.zeros(())
    for _ in range(steps):
        idx = torch.randint(1280, (64,))
        loss = nn.functional.cross_entropy(net(x[idx]), y[idx])
        if fault == "kiln_penalty_by_hand":
            loss = loss + 0.2 * sum(p.square().sum() for p in net.parameters())
        adam.zero_grad()
        loss.backward()
        adam.step()
        warmup.step()
    with torch.no_grad():
        accuracy = (net(x[1280:]).argmax(1) == y[1280:]).float().mean().item()
    return {"loss": finite(loss.item()), "accuracy": accuracy}


kiln_cracks.mistake(
    "kiln_decay_of_five",
    "OPT008", "WGT005",
    summary="Weight decay is 5: every step takes four hundredths of every weight away.",
    change="weight_decay=0.01",
)  # fmt: skip
kiln_cracks.mistake(
    "kiln_eps_of_a_tenth",
    "OPT008", "UPD002", "OPT005", "OPT007",
    summary="AdamW's eps is a tenth, far above the root of its second moment: the steps are tiny.",
    change="eps=1e-8",
)  # fmt: skip
kiln_cracks.mistake(
    "kiln_rate_times_rate",
    "OPT007", "UPD002", "OPT005", "OPT002",
    summary="The function given to LambdaLR returns a rate, not a factor, and squares it besides.",
    change="return the factor alone",
)  # fmt: skip
kiln_cracks.mistake(
    "kiln_penalty_by_hand",
    "GRD009", "WGT005", "OPT008",
    summary="A penalty on all squared weights, written by hand, weighs more than the classification.",
    change="a weight of 1e-4",
)  # fmt: skip


@program(steps=960, bites="after")
def kiln_new_clay(steps: int, seed: int, fault: str) -> dict[str, float]:
    """At step 900 another pit is opened, with four times the spread in everything; Adam follows."""
    torch.manual_seed(seed)
    x, y, _ = bricks(seed, noise=0.02)
    net = nn.Sequential(nn.Linear(COLUMNS, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    memory = 0.9999 if fault == "kiln_memory_of_ten_thousand" else 0.98
    adam = torch.optim.Adam(net.parameters(), lr=3e-3, betas=(0.9, memory))
    after = []
    loss = torch.zeros(())
    for step in range(steps):
        idx = torch.randint(1280, (64,))
        spread = 4.0 if step >= 900 else 1.0
        loss = nn.functional.mse_loss(net(spread * x[idx]).squeeze(1), spread * y[idx])
        adam.zero_grad()
        loss.backward()
        adam.step()
        if step > 900:
            after.append(loss.item())
    return {"loss": finite(loss.item()), "after": finite(sum(after) / max(1, len(after)))}


kiln_new_clay.mistake(
    "kiln_memory_of_ten_thousand",
    "OPT008", "UPD001", "OPT003", "GRD006", "OPT001",
    summary="The second moment remembers ten thousand steps: when the clay changes, the steps are far too large.",
    change="betas=(0.9, 0.98)",
    onset=900,
)  # fmt: skip


@program(steps=180, adversarial="a loss that falls by less than half means that targets do not follow from inputs")
def kiln_half_is_chance(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Strength as a tired worker measures it: half of the variance is noise that nobody can predict."""
    torch.manual_seed(seed)
    x, y, _ = bricks(seed, noise=1.0)
    y = y / y.std()
    net = nn.Sequential(nn.Linear(COLUMNS, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))
    adam = torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=0.1)
    for _ in range(steps):
        idx = torch.randint(1280, (128,))
        loss = nn.functional.mse_loss(net(x[idx]).squeeze(1), y[idx])
        adam.zero_grad()
        loss.backward()
        adam.step()
    with torch.no_grad():
        return {"loss": nn.functional.mse_loss(net(x[1280:]).squeeze(1), y[1280:]).item()}


@program(steps=200, adversarial="updates that fall to nothing mean that the schedule is wrong")
def kiln_rests_at_the_end(steps: int, seed: int, fault: str) -> dict[str, float]:
    """One cycle that is over at two thirds of the run: the rest is at a ten-thousandth of the rate, on purpose."""
    torch.manual_seed(seed)
    x, y, _ = bricks(seed)
    net = nn.Sequential(nn.Linear(COLUMNS, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    adam = torch.optim.Adam(net.parameters(), lr=8e-3)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, T_max=130, eta_min=8e-7)
    loss = torch.zeros(())
    for step in range(steps):
        idx = torch.randint(1280, (64,))
        loss = nn.functional.smooth_l1_loss(net(x[idx]).squeeze(1), y[idx])
        adam.zero_grad()
        loss.backward()
        adam.step()
        if step < 130:
            cosine.step()
    return {"loss": loss.item()}


@program(steps=180, bites="accuracy", adversarial="weights that go to zero are collapsing")
def kiln_thinned_out(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Soft thresholding after every step (the lasso): most weights of the first layer end at exactly zero."""
    torch.manual_seed(seed)
    x, _, y = bricks(seed)
    net = nn.Sequential(nn.Linear(COLUMNS, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))
    sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    first = net[0].get_parameter("weight")
    loss = torch.zeros(())
    for _ in range(steps):
        idx = torch.randint(1280, (64,))
        loss = nn.functional.cross_entropy(net(x[idx]), y[idx])
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        with torch.no_grad():
            first.copy_(first.sign() * (first.abs() - 0.002).clamp(min=0))
    with torch.no_grad():
        accuracy = (net(x[1280:]).argmax(1) == y[1280:]).float().mean().item()
    return {"loss": loss.item(), "accuracy": accuracy, "zeros": (first == 0).float().mean().item()}


@program(steps=180, adversarial="inputs in the thousands are badly scaled")
def kiln_in_raw_units(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Columns arrive in kelvin, gram and pascal; a batch norm without weights at the door puts them in order."""
    torch.manual_seed(seed)
    x, y, _ = bricks(seed)
    units = torch.logspace(-2, 4, COLUMNS)
    x = (x + 3.0) * units
    net = nn.Sequential(
        nn.BatchNorm1d(COLUMNS, affine=False),
        nn.Linear(COLUMNS, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1),
    )  # fmt: skip
    adam = torch.optim.Adam(net.parameters(), lr=4e-3)
    for _ in range(steps):
        idx = torch.randint(1280, (64,))
        loss = nn.functional.mse_loss(net(x[idx]).squeeze(1), y[idx])
        adam.zero_grad()
        loss.backward()
        adam.step()
    net.eval()
    with torch.no_grad():
        return {"loss": nn.functional.mse_loss(net(x[1280:]).squeeze(1), y[1280:]).item()}
