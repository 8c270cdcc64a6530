"""An apprentice who has already learnt one trade learns another: transfer, several tasks, teachers and opponents."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F  # noqa: N812

from corpus.case import program

CRAFTS = 6


class Trade:
    """Things described by twenty-four numbers; the craft is the largest of six hidden sums."""

    def __init__(self, turn: float = 0.0) -> None:
        base = torch.randn(24, CRAFTS, generator=torch.Generator().manual_seed(7))
        other = torch.randn(24, CRAFTS, generator=torch.Generator().manual_seed(8))
        self.rule = base + turn * other

    def batch(self, n: int = 64) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 24)
        return x, (torch.relu(x) @ self.rule).argmax(1)


class Apprentice(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.eye = nn.Linear(24, width)
        self.hand = nn.Linear(width, width)
        self.craft = nn.Linear(width, CRAFTS)

    def forward(self, x: Tensor) -> Tensor:
        return self.craft(F.relu(self.hand(F.relu(self.eye(x)))))


def taught(steps: int, trade: Trade, width: int = 64) -> Apprentice:
    """One who has learnt a trade before the story begins."""
    model = Apprentice(width)
    adam = optim.Adam(model.parameters(), lr=4e-3)
    for _ in range(steps):
        x, y = trade.batch()
        adam.zero_grad()
        F.cross_entropy(model(x), y).backward()
        adam.step()
    model.zero_grad(set_to_none=True)
    return model


def skill(model: nn.Module, trade: Trade) -> float:
    with torch.no_grad():
        x, y = trade.batch(600)
        return (model(x).argmax(1) == y).float().mean().item()


class LowRank(nn.Module):
    """A frozen layer and a correction of rank four that begins at nought."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * F.linear(F.linear(x, self.a), self.b)


@program(steps=160, bites="skill", adversarial="a matrix of noughts and another without gradient at first are dead")
def apprentice_low_rank(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Low-rank corrections on two frozen layers, and a craft layer that stays as it was."""
    torch.manual_seed(seed)
    model = taught(250, Trade())
    model.eye, model.hand = LowRank(model.eye), LowRank(model.hand)  # pyright: ignore[reportAttributeAccessIssue]
    model.craft.requires_grad_(False)
    trade, loss = Trade(0.6), torch.zeros(())
    adam = optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    for _ in range(steps):
        x, y = trade.batch()
        loss = F.cross_entropy(model(x), y)
        adam.zero_grad()
        loss.backward()
        adam.step()
    return {"loss": loss.item(), "skill": skill(model, trade)}


@program(steps=150, bites="skill", adversarial="updates a hundred times smaller below than above are too small")
def apprentice_layered_rates(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Each layer below learns five times slower than the one above it, and a penalty holds it near where it was."""
    torch.manual_seed(seed)
    model = taught(250, Trade())
    home = {n: p.detach().clone() for n, p in model.named_parameters()}
    nn.init.normal_(model.craft.weight, std=0.05)
    trade, loss = Trade(0.5), torch.zeros(())
    rates = {"craft": 5e-3, "hand": 1e-3, "eye": 2e-4}
    adam = optim.Adam([{"params": model.get_submodule(n).parameters(), "lr": lr} for n, lr in rates.items()])
    for _ in range(steps):
        x, y = trade.batch()
        loss = F.cross_entropy(model(x), y)
        away = sum(((p - home[n]) ** 2).sum() for n, p in model.named_parameters() if "craft" not in n)
        adam.zero_grad()
        (loss + 0.01 * away).backward()
        adam.step()
    return {"loss": loss.item(), "skill": skill(model, trade)}


@program(steps=160, bites="skill", adversarial="a loss of divergences a hundred times below the cross-entropy vanishes")
def apprentice_distilled(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A small pupil follows a large master by the divergence at temperature four, without labels."""
    torch.manual_seed(seed)
    trade = Trade()
    master, pupil = taught(250, trade, 96).eval(), Apprentice(40)
    adam, loss = optim.Adam(pupil.parameters(), lr=5e-3), torch.zeros(())
    for _ in range(steps):
        x, _ = trade.batch()
        with torch.no_grad():
            wise = master(x) / 4
        loss = F.kl_div(F.log_softmax(pupil(x) / 4, 1), wise.softmax(1), reduction="batchmean")
        adam.zero_grad()
        loss.backward()
        adam.step()
    return {"loss": loss.item(), "skill": skill(pupil, trade)}


@program(steps=180, bites="skill", adversarial="a head that is skipped in most steps is never updated")
def apprentice_many_masters(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Three masters take turns at random, one of them once in ten days; only his head and the trunk learn that day."""
    torch.manual_seed(seed)
    trades = [Trade(0.0), Trade(0.5), Trade(-0.5)]
    trunk = nn.Sequential(nn.Linear(24, 72), nn.ReLU(), nn.Linear(72, 48), nn.ReLU())
    heads = nn.ModuleList(nn.Linear(48, CRAFTS) for _ in trades)
    adam = optim.Adam([*trunk.parameters(), *heads.parameters()], lr=4e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        day = int(torch.multinomial(torch.tensor([0.6, 0.3, 0.1]), 1))
        x, y = trades[day].batch()
        loss = F.cross_entropy(heads[day](trunk(x)), y)
        adam.zero_grad(set_to_none=True)
        loss.backward()
        adam.step()
    return {"loss": loss.item(), "skill": skill(nn.Sequential(trunk, heads[0]), trades[0])}


@program(steps=150, bites="skill", adversarial="gradients of the inputs that are taken apart mean a second backward")
def apprentice_hardened(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Each batch is first made harder by a signed gradient step on its inputs."""
    torch.manual_seed(seed)
    trade, model = Trade(), Apprentice()
    sgd, loss = optim.SGD(model.parameters(), lr=0.1, momentum=0.9), torch.zeros(())
    for _ in range(steps):
        x, y = trade.batch()
        x.requires_grad_()
        push = torch.autograd.grad(F.cross_entropy(model(x), y), x)[0]
        harder = (x + 0.1 * push.sign()).detach()
        loss = F.cross_entropy(model(harder), y)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    return {"loss": loss.item(), "skill": skill(model, trade)}


@program(steps=200, bites="skill", adversarial="a loss that jumps threefold in mid-run is a spike or a bad batch")
def apprentice_changes_trade(steps: int, seed: int, fault: str) -> dict[str, float]:
    """At half-time the trade changes on purpose; old exercises are rehearsed beside the new ones."""
    torch.manual_seed(seed)
    old, new = Trade(), Trade(1.0)
    model, loss = Apprentice(), torch.zeros(())
    asks = nn.Embedding(2, 24)
    adam = optim.Adam([*model.parameters(), *asks.parameters()], lr=3e-3)
    kept: list[tuple[Tensor, Tensor]] = []
    for step in range(steps):
        late = step >= steps // 2
        x, y = (new if late else old).batch()
        scores = model(x + asks.weight[int(late)])
        loss = F.cross_entropy(scores, y)
        if late and kept:
            x, y = kept[step % len(kept)]
            loss = loss + 0.5 * F.cross_entropy(model(x + asks.weight[0]), y)
        elif not late:
            kept.append((x, y))
        adam.zero_grad()
        loss.backward()
        adam.step()
    with torch.no_grad():
        x, y = new.batch(600)
        right = (model(x + asks.weight[1]).argmax(1) == y).float().mean().item()
    return {"loss": loss.item(), "skill": right}


@program(steps=300, bites="skill", adversarial="weights that are thrown back after some steps have been lost")
def apprentice_quick_study(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Reptile: a copy learns one of many trades for five steps, and the model moves most of the way to it."""
    torch.manual_seed(seed)
    model = Apprentice(48)
    loss = torch.zeros(())
    for _ in range(max(1, steps // 5)):
        trade = Trade(0.2 * float(torch.randn(())))
        pupil = copy.deepcopy(model)
        sgd = optim.SGD(pupil.parameters(), lr=0.1, momentum=0.8)
        for _ in range(5):
            x, y = trade.batch()
            loss = F.cross_entropy(pupil(x), y)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
        with torch.no_grad():
            for p, q in zip(model.parameters(), pupil.parameters()):
                p.lerp_(q, 0.7)
    return {"loss": loss.item(), "skill": skill(model, Trade())}
