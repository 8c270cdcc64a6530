"""How people run their loops on a long climb: pieces, precision, resumes, thaws, ensembles and bare tensors."""

from __future__ import annotations

import copy
import io
import math

import torch
import torch.nn as nn
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.checkpoint import checkpoint

from corpus.case import program

CAMPS = 7


def slopes(n: int) -> tuple[Tensor, Tensor]:
    """Twenty instruments; which of seven slopes is the party on?"""
    x = torch.randn(n, 20)
    angle = torch.atan2(x[:, 0] + 0.5 * x[:, 2], x[:, 1] - 0.5 * x[:, 3]) + 0.5 * x[:, 4]
    return x, ((angle / math.pi + 1) * CAMPS / 2).long() % CAMPS


class Residual(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


def party(dim: int = 48, blocks: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Linear(20, dim), *(Residual(dim) for _ in range(blocks)), nn.Linear(dim, CAMPS))


@torch.no_grad()
def accuracy(net: nn.Module) -> float:
    net.eval()
    x, y = slopes(800)
    return (net(x).argmax(1) == y).float().mean().item()


@program(
    steps=150, bites="accuracy", adversarial="many backward passes for one step, of unequal size, were not cleared"
)
def climb_in_uneven_pieces(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Four pieces of unequal length, each a sum, divided once by the whole number of rows."""
    torch.manual_seed(seed)
    x, y = slopes(4000)
    net = party()
    adam = torch.optim.AdamW(net.parameters(), lr=3e-3)
    total = 0.0
    for _ in range(steps):
        rows = torch.randperm(4000)[:96]
        total = 0.0
        for piece in rows.split([10, 20, 26, 40]):
            loss = cross_entropy(net(x[piece]), y[piece], reduction="sum") / 96
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        adam.step()
        adam.zero_grad()
    return {"loss": total, "accuracy": accuracy(net)}


@program(steps=150, bites="accuracy", adversarial="activations of eight bits of mantissa underflow")
def climb_in_bfloat(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Autocast to bfloat16 on the processor, weights and optimizer in full."""
    torch.manual_seed(seed)
    x, y = slopes(4000)
    net = party()
    adam = torch.optim.AdamW(net.parameters(), lr=3e-3, foreach=True)
    loss = torch.zeros(())
    for _ in range(steps):
        rows = torch.randint(4000, (64,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = cross_entropy(net(x[rows]), y[rows])
        adam.zero_grad()
        loss.backward()
        adam.step()
    return {"loss": loss.item(), "accuracy": accuracy(net)}


@program(
    steps=160, bites="accuracy", adversarial="a model and an optimizer that are new in mid-run were rebuilt by mistake"
)
def climb_after_a_rest(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Half-way the run is saved, everything is built anew, loaded, and goes on as if nothing had happened."""
    torch.manual_seed(seed)
    x, y = slopes(4000)
    loss, tent = torch.zeros(()), io.BytesIO()
    net = party()
    for half in range(2):
        net = party()
        adam = torch.optim.Adam(net.parameters(), lr=2e-3)
        plan = torch.optim.lr_scheduler.CosineAnnealingLR(adam, max(steps, 2))
        if half:
            tent.seek(0)
            saved = torch.load(tent)
            net.load_state_dict(saved["net"])
            adam.load_state_dict(saved["adam"])
            plan.load_state_dict(saved["plan"])
        for _ in range(steps // 2):
            rows = torch.randint(4000, (64,))
            loss = cross_entropy(net(x[rows]), y[rows])
            adam.zero_grad()
            loss.backward()
            adam.step()
            plan.step()
        torch.save({"net": net.state_dict(), "adam": adam.state_dict(), "plan": plan.state_dict()}, tent)
    return {"loss": loss.item(), "accuracy": accuracy(net)}


@program(steps=180, bites="accuracy", adversarial="layers without a gradient for sixty steps are frozen by mistake")
def climb_thaws_downwards(steps: int, seed: int, fault: str) -> dict[str, float]:
    """A network that knows the mountain from the other side: the head first, then each block joins the optimizer."""
    torch.manual_seed(seed)
    x, y = slopes(4000)
    net = party()
    before = torch.optim.Adam(net.parameters(), lr=3e-3)
    with torch.enable_grad():
        for _ in range(40):  # the other side
            before.zero_grad()
            rows = torch.randint(4000, (64,))
            cross_entropy(net(x[rows]), (y[rows] + 1) % CAMPS).backward()
            before.step()
    net.zero_grad(set_to_none=True)
    net.requires_grad_(False)
    parts = list(net)[::-1]
    parts[0].requires_grad_(True)
    adam = torch.optim.Adam(parts[0].parameters(), lr=3e-3)
    loss = torch.zeros(())
    for step in range(steps):
        if step and step % 40 == 0 and step // 40 < len(parts):
            part = parts[step // 40].requires_grad_(True)
            adam.add_param_group({"params": list(part.parameters()), "lr": 1e-3})
        rows = torch.randint(4000, (64,))
        loss = cross_entropy(net(x[rows]), y[rows])
        adam.zero_grad()
        loss.backward()
        adam.step()
    return {"loss": loss.item(), "accuracy": accuracy(net)}


@program(steps=150, bites="accuracy", adversarial="a module that runs twice in one step leaks")
def climb_recomputes(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Each block is checkpointed, and the loss on clean validation rows is looked at every thirty steps."""
    torch.manual_seed(seed)
    x, y = slopes(4000)
    enter, blocks, leave = nn.Linear(20, 40), nn.ModuleList(Residual(40) for _ in range(4)), nn.Linear(40, CAMPS)
    net = nn.Sequential(enter, *blocks, leave)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.3)
    loss = torch.zeros(())
    for step in range(steps):
        net.train()
        rows = torch.randint(3500, (64,))
        h = enter(x[rows])
        for block in blocks:
            h = checkpoint(block, h, use_reentrant=False)
        loss = cross_entropy(leave(h), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 30 == 29:
            net.eval()
            with torch.no_grad():
                plateau.step(cross_entropy(net(x[3500:]), y[3500:]))
    return {"loss": loss.item(), "accuracy": accuracy(net)}


@program(steps=160, bites="accuracy", adversarial="weights that leave the optimizer's path at the end have drifted")
def climb_averages_the_way(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Stochastic weight averaging at a constant high rate in the last third, batch statistics renewed at the end."""
    torch.manual_seed(seed)
    x, y = slopes(4000)
    net = nn.Sequential(
        nn.Linear(20, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 64), nn.BatchNorm1d(64), nn.ReLU(),
        nn.Linear(64, CAMPS),
    )  # fmt: skip
    average = torch.optim.swa_utils.AveragedModel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    swing = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05, anneal_epochs=10)
    loss = torch.zeros(())
    for step in range(steps):
        rows = torch.randint(4000, (64,))
        loss = cross_entropy(net(x[rows]), y[rows], label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step > 2 * steps // 3:
            average.update_parameters(net)
            swing.step()
    torch.optim.swa_utils.update_bn(list(x.split(200)), average)
    return {"loss": loss.item(), "accuracy": accuracy(average)}


@program(steps=160, bites="loss", adversarial="without a module there are no layers to watch")
def climb_with_bare_tensors(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Three tensors, no module, one optimizer: the height from the instruments."""
    torch.manual_seed(seed)
    x, _ = slopes(3000)
    height = torch.cos(x[:, :3]).prod(1) + 0.5 * x[:, 4]
    w1 = (torch.randn(20, 64) * (2 / 20) ** 0.5).requires_grad_()
    b1 = torch.zeros(64, requires_grad=True)
    w2 = (torch.randn(64) * (1 / 64) ** 0.5).requires_grad_()
    optimizer = torch.optim.Adam([w1, b1, w2], lr=5e-3)
    loss = torch.zeros(())
    for _ in range(steps):
        rows = torch.randint(3000, (64,))
        loss = mse_loss(torch.relu(x[rows] @ w1 + b1) @ w2, height[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item()}


@program(steps=140, bites="accuracy", adversarial="losses added over members are not averaged")
def climb_as_a_rope_team(steps: int, seed: int, fault: str) -> dict[str, float]:
    """Four networks trained at once as one stack of parameters by `vmap`; their losses are independent and added."""
    torch.manual_seed(seed)
    x, y = slopes(4000)
    team = [party(32, 1) for _ in range(4)]
    params, _ = torch.func.stack_module_state(list(team))
    shape = copy.deepcopy(team[0]).to("meta")
    adam = torch.optim.Adam(params.values(), lr=3e-3)

    def one(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(shape, p, (x,))

    loss, right = torch.zeros(()), torch.zeros(())
    for _ in range(steps):
        rows = torch.randint(4000, (64,))
        scores = torch.func.vmap(one, in_dims=(0, None))(params, x[rows])
        loss = sum((cross_entropy(s, y[rows]) for s in scores), torch.zeros(()))
        right = (scores.mean(0).argmax(1) == y[rows]).float().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    return {"loss": loss.item(), "accuracy": right.item()}
