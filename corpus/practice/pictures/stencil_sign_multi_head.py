"""Stencilled signs: shape, number and tilt of the marks on a small picture, several heads on one trunk."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from corpus.case import program

EDGE = 14
SHAPES, MOST = 4, 3


def stamp(shape: int, tilt: float) -> torch.Tensor:
    """A mark of five by five: bar, cross, ring or block, more or less slanted."""
    r = torch.arange(-2.0, 3.0)
    u, v = r[:, None] + tilt * r[None], r[None].expand(5, 5)
    if shape == 0:
        return (u.abs() < 0.8).float()
    if shape == 1:
        return ((u.abs() < 0.6) | (v.abs() < 0.6)).float()
    if shape == 2:
        return ((u.square() + v.square()).sqrt().sub(1.8).abs() < 0.6).float()
    return ((u.abs() < 1.5) & (v.abs() < 1.5)).float()


def signs(seed: int, count: int) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    shape = torch.randint(SHAPES, (count,), generator=g)
    number = torch.randint(MOST, (count,), generator=g)
    tilt = torch.rand(count, generator=g) - 0.5
    picture = 0.15 * torch.randn(count, 1, EDGE, EDGE, generator=g)
    corners = [(0, 0), (0, 7), (8, 4)]
    for i in range(count):
        mark = stamp(int(shape[i]), float(tilt[i]))
        for top, left in corners[: int(number[i]) + 1]:
            a, b = (int(k) for k in torch.randint(3, (2,), generator=g))
            picture[i, 0, top + a : top + a + 5, left + b : left + b + 5] += mark[: EDGE - top - a, : EDGE - left - b]
    return {"picture": picture, "shape": shape, "number": number, "tilt": 2 * tilt}


class Trunk(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(1, 12, 3, padding=1)
        self.c2 = nn.Conv2d(12, 16, 3, padding=1, stride=2)
        self.c3 = nn.Conv2d(16, 24, 3, padding=1, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in (self.c1, self.c2, self.c3):
            x = functional.leaky_relu(conv(x), 0.05)
        return x.flatten(1)


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = Trunk()
        self.heads = nn.ModuleDict({"shape": nn.Linear(384, SHAPES), "number": nn.Linear(384, MOST)})

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        h = self.trunk(x)
        return {name: head(h) for name, head in self.heads.items()}


def flat(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def both_right(model: Reader, data: dict[str, torch.Tensor]) -> float:
    with torch.no_grad():
        out = model(data["picture"])
    right = (out["shape"].argmax(1) == data["shape"]).float() + (out["number"].argmax(1) == data["number"]).float()
    return right.mean().item() / 2


@program(steps=120, bites="accuracy")
def stencils(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Shape and number at once, AdamW with one group for the trunk and one for the heads."""
    torch.manual_seed(seed)
    data, fresh = signs(seed, 600), signs(seed + 77, 300)
    model = Reader()
    if fault == "stencils_trunk_frozen_from_habit":
        for p in model.trunk.parameters():
            p.requires_grad = False
    if fault == "stencils_second_conv_frozen":
        model.trunk.c2.requires_grad_(False)
    listed = model.heads["shape"] if fault == "stencils_number_head_unlisted" else model.heads
    head_params = list(listed.parameters())

    def new_optimizer() -> torch.optim.AdamW:
        return torch.optim.AdamW([{"params": model.trunk.parameters()}, {"params": head_params, "lr": 2e-3}], lr=3e-3)

    opt = new_optimizer()
    if fault == "stencils_head_swapped_afterwards":
        model.heads["number"] = nn.Linear(384, MOST)
    watched: dict[str, nn.Module] = {"trunk": model.trunk, "number": model.heads["number"], "second": model.trunk.c2}
    mark = {name: flat(module) for name, module in watched.items()}
    losses: list[float] = []
    for step in range(steps):
        if step == 50:
            mark["late"] = flat(model.trunk)
            if fault == "stencils_frozen_after_export":
                model.requires_grad_(False)  # for the exporter
                model.heads.requires_grad_(True)
        if fault == "stencils_optimizer_in_the_loop" or (fault == "stencils_fresh_optimizer_at_fifty" and step >= 50):
            opt = new_optimizer()
        pick = torch.randint(600, (32,))
        out = model(data["picture"][pick])
        loss = sum(functional.cross_entropy(out[task], data[task][pick]) for task in out)
        assert isinstance(loss, torch.Tensor)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    moved = {name: (flat(module) - mark[name]).norm().item() for name, module in watched.items()}
    late = (flat(model.trunk) - mark.get("late", flat(model.trunk))).norm().item()
    return {
        "loss": sum(losses[-10:]) / len(losses[-10:]),
        "accuracy": both_right(model, fresh),
        "trunk_moved": moved["trunk"],
        "number_moved": moved["number"],
        "second_moved": moved["second"],
        "late_moved": late,
    }


stencils.mistake(
    "stencils_trunk_frozen_from_habit",
    "UPD003", "GRD003",
    summary="The trunk is frozen as in a fine-tuning script, but nothing was ever loaded into it.",
    change="do not freeze a trunk that has learned nothing",
    layers=("trunk",),
    bites="loss",
)  # fmt: skip
stencils.mistake(
    "stencils_second_conv_frozen",
    "UPD003", "GRD003",
    summary="A loop over names freezes 'c2', the name of a layer in the pretrained model of another project.",
    change="do not freeze trunk.c2",
    layers=("trunk.c2",),
    bites="second_moved",
    silent=True,
)  # fmt: skip
stencils.mistake(
    "stencils_number_head_unlisted",
    "UPD003",
    summary="The head for the number was added later and is in no parameter group.",
    change="give the optimizer all heads",
    layers=("heads.number",),
    bites="number_moved",
    silent=True,
)
stencils.mistake(
    "stencils_head_swapped_afterwards",
    "UPD003",
    summary="The head for the number is replaced after the optimizer was made, which holds the old one.",
    change="replace the head first",
    layers=("heads.number",),
    bites="number_moved",
    silent=True,
)
stencils.mistake(
    "stencils_frozen_after_export",
    "UPD003", "GRD003",
    summary="For an export at step 50 everything is frozen, and afterwards only the heads are thawed.",
    change="thaw the whole model",
    layers=("trunk",),
    onset=50,
    bites="late_moved",
    silent=True,
)  # fmt: skip
stencils.mistake(
    "stencils_optimizer_in_the_loop",
    "OPT008",
    summary="The optimizer is made anew in every step: its moments know one gradient only.",
    change="make it once, before the loop",
    bites="loss",
)
stencils.mistake(
    "stencils_fresh_optimizer_at_fifty",
    "OPT008",
    summary="From step 50 on a 'reset' of the optimizer runs in every step instead of once.",
    change="reset once",
    bites="loss",
    onset=50,
)


@program(steps=120, bites="loss", adversarial="a head without gradients is cut off: each batch asks one question only")
def stencils_one_question(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Two batches in three ask for the shape, one for the number; the other head waits."""
    torch.manual_seed(seed)
    data = signs(seed, 600)
    model = Reader()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    last = {"shape": 1.0, "number": 1.0}
    for step in range(steps):
        task = "number" if step % 3 == 2 else "shape"
        pick = torch.randint(600, (32,))
        loss = functional.cross_entropy(model.heads[task](model.trunk(data["picture"][pick])), data[task][pick])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        last[task] = loss.item()
    return {"loss": sum(last.values())}


@program(steps=120, bites="loss", adversarial="parameters that do not move are forgotten: the trunk follows slowly")
def stencils_follower(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A slow copy of the reader gives extra targets; it is moved by an average, never by the optimizer."""
    torch.manual_seed(seed)
    data = signs(seed, 600)
    model = nn.ModuleDict({"quick": Reader(), "slow": Reader()})
    model["slow"].load_state_dict(model["quick"].state_dict())
    model["slow"].requires_grad_(False)
    opt = torch.optim.Adam(model["quick"].parameters(), lr=3e-3)
    loss = torch.zeros(())
    for step in range(steps):
        pick = torch.randint(600, (32,))
        x = data["picture"][pick]
        out, slow = model["quick"](x), model["slow"](x + 0.05 * torch.randn_like(x))
        loss = functional.cross_entropy(out["shape"], data["shape"][pick])
        loss = loss + functional.cross_entropy(out["number"], data["number"][pick])
        agree = sum(functional.mse_loss(out[k].softmax(1), slow[k].softmax(1)) for k in out)
        opt.zero_grad()
        (loss + min(1.0, step / 50) * agree).backward()
        opt.step()
        with torch.no_grad():
            for q, s in zip(model["quick"].parameters(), model["slow"].parameters(), strict=True):
                s.lerp_(q, 0.05)
    return {"loss": loss.item()}


@program(steps=130, bites="loss", adversarial="a task that swings below zero is wrong: learned weights of the losses")
def stencils_three_answers(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Shape, number and tilt with learned uncertainties as weights: the sum falls below zero."""
    torch.manual_seed(seed)
    data = signs(seed, 600)
    model = Reader()
    model.heads["tilt"] = nn.Linear(384, 1)
    doubt = nn.Parameter(torch.zeros(3))
    opt = torch.optim.Adam([{"params": model.parameters()}, {"params": [doubt], "lr": 3e-2}], lr=3e-3)
    total = torch.zeros(())
    for _ in range(steps):
        pick = torch.randint(600, (48,))
        out = model(data["picture"][pick])
        parts = torch.stack([
            functional.cross_entropy(out["shape"], data["shape"][pick]),
            functional.cross_entropy(out["number"], data["number"][pick]),
            functional.mse_loss(out["tilt"].squeeze(1), data["tilt"][pick]),
        ])  # fmt: skip
        total = (torch.exp(-doubt) * parts + 0.5 * doubt).sum()
        opt.zero_grad()
        total.backward()
        opt.step()
    return {"loss": total.item()}
