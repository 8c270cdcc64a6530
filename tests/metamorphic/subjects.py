"""Three small trainings that can be twisted in ways that must not change what is said of them."""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

import undertow

STEPS = 60
# The first is right whatever it is called; a cut encoder and a vanishing one need different eyes to see.
SUBJECTS = ("sound", "cut", "vanishing")


@dataclass(frozen=True)
class Twist:
    """Everything that may be different about a training. `cured` is the one thing that must make a difference."""

    optimizer: str = "adam"
    seed: int = 0
    loss_factor: float = 1.0
    rate_factor: float = 1.0
    micro_batches: int = 1
    renamed: bool = False
    identity: bool = False
    wrapped: bool = False
    autocast: bool = False
    compiled: bool = False
    every: int = 1
    cured: bool = False


class Verdict(NamedTuple):
    health: str
    code: str | None
    layer: str | None  # the module at fault, by its plain name


class Chain(nn.Module):
    """An encoder and a head, registered under the names given, in their order."""

    def __init__(self, encoder: nn.Module, head: nn.Module, renamed: bool, cut: bool) -> None:
        super().__init__()
        self.cut, self.renamed = cut, renamed
        if renamed:  # other names, and the other way round
            self.add_module("aa_output", head)
            self.add_module("zz_features", encoder)
        else:
            self.add_module("encoder", encoder)
            self.add_module("head", head)

    def forward(self, x: Tensor) -> Tensor:
        encoder, head = ("zz_features", "aa_output") if self.renamed else ("encoder", "head")
        features = self.get_submodule(encoder)(x)
        return self.get_submodule(head)(features.detach() if self.cut else features)


def _encoder(widths: list[int], activation: type[nn.Module], identity: bool) -> nn.Sequential:
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (before, after) in enumerate(pairwise(widths)):
        parts[f"linear{number}"] = nn.Linear(before, after)
        if identity:
            parts[f"nothing{number}"] = nn.Identity()
        parts[f"activation{number}"] = activation()
    return nn.Sequential(parts)


def _model(subject: str, twist: Twist) -> Chain:
    if subject == "vanishing" and not twist.cured:
        encoder = _encoder([16] + [24] * 10, nn.Sigmoid, twist.identity)
    else:
        encoder = _encoder([16, 32, 24], nn.ReLU, twist.identity)
    return Chain(encoder, nn.Linear(24, 5), twist.renamed, cut=subject == "cut" and not twist.cured)


def _train(subject: str, twist: Twist) -> None:
    torch.manual_seed(twist.seed)
    centres = 1.5 * torch.randn(5, 16, generator=torch.Generator().manual_seed(1))
    model: nn.Module = _model(subject, twist)
    if twist.wrapped:
        model = nn.Sequential(model)
    if twist.compiled:
        model = torch.compile(model, backend="eager")  # type: ignore[assignment]
    if twist.optimizer == "adam":
        # No epsilon: with one, Adam is not quite free of the loss's scale.
        optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), 3e-3 * twist.rate_factor, eps=1e-30)
    else:
        optimizer = torch.optim.SGD(model.parameters(), 0.05 * twist.rate_factor, momentum=0.9)
    for _ in range(STEPS):
        labels = torch.randint(5, (64,))
        inputs = centres[labels] + torch.randn(64, 16)
        optimizer.zero_grad()
        for x, y in zip(inputs.chunk(twist.micro_batches), labels.chunk(twist.micro_batches), strict=True):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=twist.autocast):
                loss = functional.cross_entropy(model(x), y)
            (twist.loss_factor * loss / twist.micro_batches).backward()
        optimizer.step()


@cache
def verdict(subject: str, twist: Twist) -> Verdict:
    """Train under watch and diagnose, as a user would."""
    with tempfile.TemporaryDirectory() as folder:
        with undertow.watch(None, run_dir=Path(folder) / "run", every=twist.every, quiet=True):
            _train(subject, twist)
        diagnosis = undertow.open_run(Path(folder) / "run").diagnose()
    first = diagnosis.findings[0] if diagnosis.findings else None
    layer = first.layers[0] if first and first.layers else None
    return Verdict(str(diagnosis.health), first.code if first else None, layer and _plain(layer, twist))


def _plain(layer: str, twist: Twist) -> str:
    if twist.wrapped:
        layer = layer.removeprefix("0.")
    layer = layer.replace("zz_features", "encoder").replace("aa_output", "head")
    return layer.removesuffix(".weight").removesuffix(".bias")
