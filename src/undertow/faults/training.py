"""What a sick or healthy training is: a program, and the truth about it."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from undertow.faults.fault import SEVERITIES, Fault

Body = Callable[[int, int, Fault], dict[str, float]]
Program = Callable[[int, int], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Training:
    """A small training program with the finding it deserves.

    `codes` are the answers that are right, the best one first (see `equivalence.py`). `layers` are the paths that a
    right answer may name; a path stands for everything below it. It is empty when the cause is global, such as the
    learning rate. `onset` is the step at which the fault begins: any alarm before it is false. `bites` names the
    metric that shows the harm; a `silent` fault harms something that no accuracy shows.
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
    codes: tuple[str, ...] = ()
    architecture: str = ""
    catalogue: tuple[int, ...] = ()  # its numbers in the list of known training faults
    silent: bool = False
    ladder: tuple[float, float, float] | None = None  # strengths of mild, clear and extreme
    onsets: tuple[int, ...] = ()  # other steps at which it can begin
    severity: str = "clear"
    adversarial: str = ""  # a healthy training: which naive rule it breaks

    @property
    def is_sick(self) -> bool:
        return self.code is not None

    def run(self, steps: int | None = None, seed: int = 0, fault_on: bool = True) -> dict[str, float]:
        """Train, and give the final metrics."""
        strength = self.ladder[SEVERITIES.index(self.severity)] if self.ladder else 0.0
        return self.body(steps or self.steps, seed, Fault(fault_on and self.is_sick, strength, self.onset))

    def variant(self, severity: str | None = None, onset: int | None = None) -> Training:
        """The same training with a milder or stronger fault, or one that begins elsewhere."""
        severities = SEVERITIES if self.ladder else ("clear",)
        if severity is not None and severity not in severities:
            raise ValueError(f"{self.name} has no severity {severity!r}; it has {', '.join(severities)}")
        if onset is not None and onset not in (self.onset, *self.onsets):
            raise ValueError(f"{self.name} cannot begin at {onset}; it can at {sorted({self.onset, *self.onsets})}")
        return dataclasses.replace(
            self, severity=severity or self.severity, onset=self.onset if onset is None else onset
        )

    def variants(self) -> list[Training]:
        """Every severity at the usual onset, and the usual severity at every other onset."""
        severities = SEVERITIES if self.ladder else ("clear",)
        return [self.variant(severity) for severity in severities] + [self.variant(onset=at) for at in self.onsets]

    def accepts(self, layer: str) -> bool:
        """Is this path one of the guilty ones, or below one?"""
        return any(layer == truth or layer.startswith(f"{truth}.") for truth in self.layers)


_registered: dict[str, Training] = {}


def sick(
    *codes: str,
    steps: int,
    change: str,
    layers: tuple[str, ...] = (),
    onset: int = 0,
    bites: str = "accuracy",
    architecture: str = "",
    catalogue: tuple[int, ...] = (),
    silent: bool = False,
    ladder: tuple[float, float, float] | None = None,
    onsets: tuple[int, ...] = (),
) -> Callable[[Body], Body]:
    """Enter a program into the hospital under its function's name and docstring."""

    def enter(body: Body) -> Body:
        _enter(
            Training(
                body.__name__, _summary(body), steps, body, codes[0], frozenset(layers), onset, bites, change, codes,
                architecture, catalogue, silent, ladder, onsets,
            )
        )  # fmt: skip
        return body

    return enter


def healthy(*, steps: int, architecture: str = "", adversarial: str = "") -> Callable[[Program], Program]:
    """Enter a program into the zoo; it has no fault to switch."""

    def enter(program: Program) -> Program:
        def body(steps: int, seed: int, fault: Fault) -> dict[str, float]:
            return program(steps, seed)

        _enter(
            Training(
                program.__name__, _summary(program), steps, body, architecture=architecture, adversarial=adversarial
            )
        )
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
