"""GRD009, WGT001, WGT004, UPD001: terms, scales and single numbers that drown everything else."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from undertow.demos.case import Fault, sick
from undertow.demos.data import glyphs, share_correct
from undertow.demos.models import perceptron


@sick(
    "GRD009", steps=300, bites="error", architecture="physics-informed", ladder=(1e-3, 1e-4, 1e-6),
    change="weigh the boundary like the equation",
)  # fmt: skip
def boundary_drowned(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A network for u″ = −u: its boundary term weighs next to nothing, so that u = 0 satisfies the rest."""
    torch.manual_seed(seed)
    model = perceptron(1, 32, 32, 1, activation=nn.Tanh)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    boundary_weight = fault.strength if fault else 1.0  # at fault
    loss = torch.tensor(0.0)
    for _ in range(steps):
        x = (3 * torch.rand(64, 1)).requires_grad_()
        u = model(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        equation = (curvature + u).square().mean()
        ends = model(torch.tensor([[0.0], [math.pi / 2]]))
        boundary = (ends - torch.tensor([[0.0], [1.0]])).square().mean()
        loss = equation + boundary_weight * boundary  # at fault
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        x = torch.linspace(0, math.pi / 2, 50).unsqueeze(1)
        error = (model(x) - x.sin()).square().mean() / x.sin().var()
    return {"loss": loss.item(), "error": error.item()}


@sick(
    "GRD009", steps=150, architecture="convolutional", ladder=(1e2, 1e4, 1e6),
    change="weigh the terms so that they are of one size",
)  # fmt: skip
def one_task_drowns_the_other(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """A second head draws the picture again; its error is summed over pixels and drowns the classification."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed, noise=0.8)
    model = nn.ModuleDict(
        {
            "trunk": nn.Sequential(
                nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 8)
            ),
            "classes": nn.Linear(8, 10),
            "picture": nn.Linear(8, 64),
        }
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    weight = fault.strength if fault else 1.0  # at fault
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        features = model["trunk"](pictures[batch])
        classes = functional.cross_entropy(model["classes"](features), labels[batch])
        loss = classes + weight * functional.mse_loss(model["picture"](features), pictures[batch])  # at fault
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    test, answers = glyphs(seed + 1000, noise=0.8)
    with torch.no_grad():
        correct = model["classes"](model["trunk"](test)).argmax(1) == answers
    return {"loss": loss.item(), "accuracy": correct.float().mean().item()}


@sick(
    "WGT001", "LSS003", steps=150, bites="growth", architecture="perceptron", ladder=(1e-2, 3e-2, 0.3), onsets=(60,),
    change="add the penalty, do not subtract it",
)  # fmt: skip
def penalty_with_the_wrong_sign(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """The penalty on large weights is subtracted: large weights are rewarded, and grow without end."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = perceptron(64, 48, 32, 10, activation=nn.Tanh)
    start = sum(p.detach().square().sum() for p in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.tensor(0.0)
    for step in range(steps):
        batch = torch.randint(len(pictures), (64,))
        penalty = sum((p.square().sum() for p in model.parameters()), torch.zeros(()))
        sign = -fault.strength if fault.at(step) else 1e-4  # at fault
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch]) + sign * penalty  # at fault
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    growth = (sum(p.detach().square().sum() for p in model.parameters()) / start) ** 0.5
    accuracy = share_correct(model, *glyphs(seed + 1000))
    return {"loss": loss.item(), "accuracy": accuracy, "growth": min(float(growth), 1e6)}


@sick(
    "WGT004", steps=150, onset=80, layers=("2",), architecture="perceptron", ladder=(1e3, 1e4, 1e8), onsets=(40,),
    change="checksums on the memory, or a restart from the last checkpoint",
)  # fmt: skip
def flipped_bit(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """At step 80 a flipped bit of the exponent makes three weights of layer 2 ten thousand times larger."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = perceptron(64, 64, 64, 10)
    struck = model[2].weight
    assert isinstance(struck, nn.Parameter)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss = torch.tensor(0.0)
    for step in range(steps):
        if fault and step == fault.onset:
            struck.data[3:6, 7] = fault.strength * struck.data[3:6, 7].abs()  # at fault
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


class Adapter(nn.Module):
    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base
        self.base.requires_grad_(False)
        self.lora_a = nn.Linear(base.in_features, rank, bias=False)
        self.lora_b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_b.weight)
        self.scale = alpha / rank  # at fault

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * self.lora_b(self.lora_a(x))


@sick(
    "UPD001", "OPT007", "OPT001", "GRD002", "ACT002", steps=120, layers=("0", "2"), catalogue=(14,),
    architecture="low-rank adapters", ladder=(800, 1600, 16000), change="alpha / rank of about 1 or 2",
)  # fmt: skip
def adapter_scale(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Low-rank adapters with alpha / rank = 200: every small step of theirs is a leap of the layer."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    alpha = fault.strength if fault else 16  # at fault
    model = nn.Sequential(Adapter(nn.Linear(64, 48), 8, alpha), nn.Tanh(), Adapter(nn.Linear(48, 10), 8, alpha))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        batch = torch.randint(len(pictures), (64,))
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


@sick(
    "WGT005", "GRD009", steps=150, architecture="perceptron", ladder=(8e-3, 2e-2, 0.2), onsets=(60,),
    change="a penalty of 1e-5",
)  # fmt: skip
def penalty_too_strong(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """An L1 penalty meant to make weights sparse is so strong that it drives all of them to zero."""
    torch.manual_seed(seed)
    pictures, labels = glyphs(seed)
    model = perceptron(64, 48, 32, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = torch.tensor(0.0)
    for step in range(steps):
        batch = torch.randint(len(pictures), (64,))
        size = torch.stack([p.abs().sum() for p in model.parameters()]).sum()
        strength = fault.strength if fault.at(step) else 1e-5  # at fault
        loss = functional.cross_entropy(model(pictures[batch]), labels[batch]) + strength * size  # at fault
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "accuracy": share_correct(model, *glyphs(seed + 1000))}


@sick(
    "OPT001", "WGT001", steps=250, bites="level", architecture="perceptron", ladder=(1.02, 1.1, 1.5),
    change="a discount below one",
)  # fmt: skip
def discount_above_one(steps: int, seed: int, fault: Fault) -> dict[str, float]:
    """Value learning with a discount of 1.1: every target is larger than the value it was made from, without end."""
    torch.manual_seed(seed)
    value = perceptron(4, 48, 3)
    optimizer = torch.optim.Adam(value.parameters(), lr=5e-3)
    discount = fault.strength if fault else 0.8  # at fault
    loss, level = torch.tensor(0.0), 0.0
    for _ in range(steps):
        state, action = torch.randn(64, 4), torch.randint(3, (64,))
        reward = 1 + state[torch.arange(64), action]
        with torch.no_grad():
            target = reward + discount * value(0.9 * state + 0.3 * torch.randn(64, 4)).max(1).values  # at fault
        chosen = value(state).gather(1, action.unsqueeze(1)).squeeze(1)
        loss = functional.mse_loss(chosen, target)
        level = target.abs().mean().item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"loss": loss.item(), "level": level}
