"""Adapters: a network that knows the machines of one mill learns those of another through low-rank corrections."""

from __future__ import annotations

import torch
import torch.nn as nn

from corpus.case import program

FEATURES, HIDDEN, MACHINES = 20, 64, 8


def mill(seed, which, count=1600):
    """Vibration features of eight machines; another mill has them turned and bent."""
    g = torch.Generator().manual_seed(seed)
    centre = 1.3 * torch.randn(MACHINES, FEATURES, generator=g)
    turn = torch.linalg.qr(torch.randn(FEATURES, FEATURES, generator=g))[0]
    g.manual_seed(seed * 10 + which)
    y = torch.randint(MACHINES, (count,), generator=g)
    x = centre[y] + torch.randn(count, FEATURES, generator=g)
    if which:
        x = 0.6 * x @ turn + 0.4 * x
    return x, y


def pretrained(seed):
    """What the first mill's engineers left: three matrices and biases, trained there by plain descent."""
    x, y = mill(seed, 0)
    g = torch.Generator().manual_seed(seed)
    sizes = [(HIDDEN, FEATURES), (HIDDEN, HIDDEN), (MACHINES, HIDDEN)]
    ws = [torch.randn(o, i, generator=g) * (2 / i) ** 0.5 for o, i in sizes]
    bs = [torch.zeros(o) for o, _ in sizes]
    for _ in range(150):
        for t in ws + bs:
            t.requires_grad_(True)
        h = x
        for k in range(3):
            h = h @ ws[k].T + bs[k]
            h = h.relu() if k < 2 else h
        grads = torch.autograd.grad(nn.functional.cross_entropy(h, y), ws + bs)
        with torch.no_grad():
            new = [t - 0.3 * grad for t, grad in zip(ws + bs, grads)]
        ws, bs = new[:3], new[3:]
    return ws, bs


class LowRank(nn.Module):
    def __init__(self, weight, bias, rank=4, alpha=8.0):
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter(bias, requires_grad=False)
        self.down = nn.Parameter(torch.randn(rank, weight.shape[1]) / weight.shape[1] ** 0.5)
        self.up = nn.Parameter(torch.zeros(weight.shape[0], rank))
        self.scale = alpha / rank

    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias) + self.scale * (x @ self.down.T @ self.up.T)


def adapted(seed, alpha=8.0):
    ws, bs = pretrained(seed)
    torch.manual_seed(seed)
    parts = [LowRank(w, b, alpha=alpha) for w, b in zip(ws, bs)]
    return nn.Sequential(parts[0], nn.ReLU(), parts[1], nn.ReLU(), parts[2])


def score(net, x, y):
    with torch.no_grad():
        out = net(x)
    return (out.argmax(1) == y).float().mean().item()


@program(steps=150, bites="accuracy")
def weft_adapters(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Low-rank corrections on all three frozen layers, AdamW, linear decay."""
    x, y = mill(seed, 1)
    alpha = 3200.0 if fault == "weft_alpha_for_another_rank" else 8.0
    net = adapted(seed, alpha)
    middle = net[2]
    assert isinstance(middle, LowRank)
    if fault == "weft_both_halves_blank":
        for part in net:
            if isinstance(part, LowRank):
                nn.init.zeros_(part.down)
    if fault == "weft_middle_half_blank":
        nn.init.zeros_(middle.down)
    if fault == "weft_optimizer_before_the_adapters":
        plain = nn.ModuleList([nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, MACHINES)])
        optimizer = torch.optim.AdamW(plain.parameters(), lr=4e-3)
    else:
        optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=4e-3)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=150)
    g = torch.Generator().manual_seed(seed)
    start = middle.up.detach().clone()
    recent = []
    for _ in range(steps):
        pick = torch.randint(700, (40,), generator=g)
        loss = nn.functional.cross_entropy(net(x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
        recent.append(loss.item())
    moved = (middle.up.detach() - start).norm().item()
    return {"loss": sum(recent[-10:]) / 10, "accuracy": score(net, x[700:], y[700:]), "moved": moved}


weft_adapters.mistake(
    "weft_both_halves_blank",
    "GRD004", "WGT002", "UPD003",
    summary="Both factors of every adapter start at zero: each waits for the other for ever.",
    change="draw the first factor at random",
    layers=("0", "2", "4"),
)  # fmt: skip
weft_adapters.mistake(
    "weft_middle_half_blank",
    "GRD004", "WGT002", "UPD003",
    summary="In the middle adapter both factors start at zero; the others learn and nobody notices.",
    change="draw its first factor at random",
    layers=("2",),
    bites="moved",
    silent=True,
)  # fmt: skip
weft_adapters.mistake(
    "weft_alpha_for_another_rank",
    "UPD001", "OPT007", "WGT003", "OPT001", "GRD002", "OPT003", "OPT004",
    summary="Alpha is 3200 at rank four: every small step of the factors is eight hundred steps of the network.",
    change="alpha of one or two times the rank",
    layers=("0", "2", "4"),
)  # fmt: skip
weft_adapters.mistake(
    "weft_optimizer_before_the_adapters",
    "UPD003",
    summary="The optimizer was built for the network before the adapters went in: it moves layers nobody uses.",
    change="build the optimizer last",
    layers=("0", "2", "4"),
)


@program(steps=120, adversarial="a model of which most parameters never move has been forgotten by its optimizer")
def weft_only_the_biases(steps: int, seed: int, fault: str) -> dict[str, float]:
    """BitFit: of the pretrained network only biases and the output layer are trained, on purpose."""
    x, y = mill(seed, 1)
    ws, bs = pretrained(seed)
    first, second, third = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, MACHINES)
    net = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third)
    for layer, w, b in zip([first, second, third], ws, bs):
        layer.load_state_dict({"weight": w, "bias": b})
    first.weight.requires_grad_(False)
    second.weight.requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=8e-3)
    g = torch.Generator().manual_seed(seed)
    recent = []
    for _ in range(steps):
        pick = torch.randint(700, (40,), generator=g)
        loss = nn.functional.cross_entropy(net(x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent.append(loss.item())
    return {"loss": sum(recent[-10:]) / 10, "accuracy": score(net, x[700:], y[700:])}


@program(steps=120, adversarial="a gradient of zero in an adapter's first factor means that it is dead")
def weft_adapters_accumulate(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Low-rank corrections as they should start, two micro-batches to a step, each loss halved, Adam of torch."""
    x, y = mill(seed, 1)
    net = adapted(seed + 30, alpha=4.0)
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=5e-3)
    g = torch.Generator().manual_seed(seed)
    recent = []
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(2):
            pick = torch.randint(700, (32,), generator=g)
            loss = nn.functional.cross_entropy(net(x[pick]), y[pick]) / 2
            loss.backward()
            recent.append(2 * loss.item())
        optimizer.step()
    return {"loss": sum(recent[-10:]) / 10, "accuracy": score(net, x[700:], y[700:])}
