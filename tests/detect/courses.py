"""Losses over a training, made by hand, and a small model watched by some conditions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.random import default_rng
from tests.detect.building import Training

from undertow.detect.engine import Condition, Engine
from undertow.detect.engine.registry import conditions_of
from undertow.schema import LossKind

CROSS_ENTROPY = {"loss_kind": LossKind.CROSS_ENTROPY, "loss_classes": 10.0, "loss_rows": 64.0, "loss_factor": 1.0}
# Conditions of one code share what they follow, and stand back for one another.
OPT001 = conditions_of("OPT001")
OPT007 = conditions_of("OPT007")
OPT008 = conditions_of("OPT008")

WITH_OPTIMIZER = ("gradient", "weight", "update", "activation", "optimizer")
ADAM = {
    "optimizer_rate": 1e-3, "optimizer_weight_decay": 0.01, "optimizer_momentum": 0.9, "optimizer_rebuilt": 0.0,
    "optimizer_eps_ratio": 1e5, "optimizer_gradient_rms": 1.0,
}  # fmt: skip


def training(*conditions: type[Condition]) -> Training:
    made = Training("first", "second", "head")
    made.engine = Engine(conditions)
    made.engine.set_layers(made.layers, made.graph)
    return made


def cross_entropy(run: Training, losses: Iterable[float]) -> Training:
    for loss in losses:
        run.run(1, scalars={"loss": float(loss), "lr": 0.1, "loss_kind": 1.0, "loss_classes": 10.0})
    return run


def follow(run: Training, losses: Iterable[float], rates: Iterable[float] | None = None, **changes: Any) -> Training:
    steady = rates or iter(lambda: 0.1, None)
    for loss, rate in zip(losses, steady):
        run.run(1, scalars={"loss": float(loss), "lr": rate}, **changes)
    return run


def noisy(levels: Iterable[float], share: float = 0.03, seed: int = 0) -> Iterator[float]:
    generator = default_rng(seed)
    return (float(level * math.exp(share * generator.standard_normal())) for level in levels)


def falling(steps: int, to: float = 0.1) -> Iterator[float]:
    return noisy(np.geomspace(2.3, 2.3 * to, steps))


def with_settings(losses: Iterable[float], **changes: Any) -> Training:
    """A training with Adam as usual but for `changes`, which may depend on the step."""
    run = training(*OPT008)
    for loss in losses:
        settings = {**ADAM, "optimizer_step_count": float(run.step + 1), **changes}
        settings = {name: value(run.step) if callable(value) else value for name, value in settings.items()}
        run.run(1, scalars={"loss": loss}, streams=WITH_OPTIMIZER, **settings)
    return run
