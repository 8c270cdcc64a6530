"""What a sick or healthy training is: a program, and the truth about it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

Body = Callable[[int, int, bool], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Training:
    """A small training program with the finding it deserves.

    `layers` are the paths that a right answer may name; a path stands for everything below it.
    It is empty when the cause is global, such as the learning rate. `onset` is the step at which the
    fault begins: any alarm before it is false. `bites` names the metric that shows the harm.
    """

    name: str
    summary: str
    steps: int
    body: Body
    code: str | None = None
    layers: frozenset[str] = frozenset()
    onset: int = 0
    bites: str = "accuracy"
    change: str = ""  # what the twin does differently

    @property
    def is_sick(self) -> bool:
        return self.code is not None

    def run(self, steps: int | None = None, seed: int = 0, fault_on: bool = True) -> dict[str, float]:
        """Train, and give the final metrics."""
        return self.body(steps or self.steps, seed, fault_on)

    def accepts(self, layer: str) -> bool:
        """Is this path one of the guilty ones, or below one?"""
        return any(layer == truth or layer.startswith(f"{truth}.") for truth in self.layers)


_registered: dict[str, Training] = {}


def sick(
    code: str, *, steps: int, change: str, layers: tuple[str, ...] = (), onset: int = 0, bites: str = "accuracy"
) -> Callable[[Body], Body]:
    """Enter a program into the hospital under its function's name and docstring."""

    def enter(body: Body) -> Body:
        _enter(Training(body.__name__, _summary(body), steps, body, code, frozenset(layers), onset, bites, change))
        return body

    return enter


def healthy(
    *, steps: int
) -> Callable[[Callable[[int, int], dict[str, float]]], Callable[[int, int], dict[str, float]]]:
    """Enter a program into the zoo; it has no fault to switch."""

    def enter(program: Callable[[int, int], dict[str, float]]) -> Callable[[int, int], dict[str, float]]:
        def body(steps: int, seed: int, fault_on: bool) -> dict[str, float]:
            return program(steps, seed)

        _enter(Training(program.__name__, _summary(program), steps, body))
        return program

    return enter


def hospital() -> dict[str, Training]:
    """All sick trainings by name."""
    _import_all("undertow.faults.hospital")
    return {name: training for name, training in sorted(_registered.items()) if training.is_sick}


def zoo() -> dict[str, Training]:
    """All healthy trainings by name."""
    _import_all("undertow.faults.zoo")
    return {name: training for name, training in sorted(_registered.items()) if not training.is_sick}


def _enter(training: Training) -> None:
    if training.name in _registered:
        raise ValueError(f"two trainings are called {training.name!r}")
    _registered[training.name] = training


def _summary(program: Callable[..., object]) -> str:
    return (program.__doc__ or "").strip().splitlines()[0]


def _import_all(package: str) -> None:
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
