"""What a sick or healthy training is: a program, and the truth about it."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

SEVERITIES = ("mild", "clear", "extreme")


@dataclass(frozen=True, slots=True)
class Fault:
    """The switch that a program is given: true when its fault is on; `at(step)` when it has begun by that step.

    `strength` is the rung of the program's own ladder: a learning rate, a factor, a share of the labels…
    """

    on: bool
    strength: float = 0.0
    onset: int = 0

    def __bool__(self) -> bool:
        return self.on

    def at(self, step: int) -> bool:
        return self.on and step >= self.onset


Body = Callable[[int, int, Fault], dict[str, float]]  # steps, seed and fault; gives the final metrics


@dataclass(frozen=True, slots=True)
class Case:
    """A small training program with the finding it deserves.

    `codes` are the answers that are right, the best one first; a healthy case has none. `layers` are the paths that a
    right answer may name; a path stands for everything below it. It is empty when the cause is global, such as the
    learning rate. `onset` is the step at which the fault begins: any alarm before it is false. `bites` names the
    metric that shows the harm; a `silent` fault shows in no accuracy, so its metric is the direct effect. `twin` is
    the healthy case of the same program.
    """

    name: str
    summary: str
    steps: int
    body: Body
    codes: tuple[str, ...] = ()
    layers: frozenset[str] = frozenset()
    onset: int = 0
    bites: str = "loss"
    silent: bool = False
    change: str = ""  # what the twin does differently
    twin: str = ""
    adversarial: str = ""  # a healthy case: which naive rule it breaks
    architecture: str = ""
    catalogue: tuple[int, ...] = ()  # its numbers in the list of known training faults
    ladder: tuple[float, float, float] | None = None  # strengths of mild, clear and extreme
    onsets: tuple[int, ...] = ()  # other steps at which it can begin
    severity: str = "clear"
    tier: str = ""

    @property
    def is_sick(self) -> bool:
        return bool(self.codes)

    @property
    def code(self) -> str | None:
        """The best answer."""
        return self.codes[0] if self.codes else None

    def run(self, steps: int | None = None, seed: int = 0, fault_on: bool = True) -> dict[str, float]:
        """Train, and give the final metrics."""
        strength = self.ladder[SEVERITIES.index(self.severity)] if self.ladder else 0.0
        return self.body(steps or self.steps, seed, Fault(fault_on and self.is_sick, strength, self.onset))

    def variant(self, severity: str | None = None, onset: int | None = None) -> Case:
        """The same training with a milder or stronger fault, or one that begins elsewhere."""
        severities = SEVERITIES if self.ladder else ("clear",)
        if severity is not None and severity not in severities:
            raise ValueError(f"{self.name} has no severity {severity!r}; it has {', '.join(severities)}")
        if onset is not None and onset not in (self.onset, *self.onsets):
            raise ValueError(f"{self.name} cannot begin at {onset}; it can at {sorted({self.onset, *self.onsets})}")
        return dataclasses.replace(
            self, severity=severity or self.severity, onset=self.onset if onset is None else onset
        )

    def variants(self) -> list[Case]:
        """Every severity at the usual onset, and the usual severity at every other onset."""
        severities = SEVERITIES if self.ladder else ("clear",)
        return [self.variant(severity) for severity in severities] + [self.variant(onset=at) for at in self.onsets]

    def accepts(self, layer: str) -> bool:
        """Is this path one of the guilty ones, or below one?"""
        return any(layer == truth or layer.startswith(f"{truth}.") for truth in self.layers)


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
    """Register a program under its function's name and docstring; without the fault it is its own healthy twin."""

    def register(body: Body) -> Body:
        case = Case(
            body.__name__, summary_of(body), steps, body, codes, frozenset(layers), onset, bites, silent, change,
            architecture=architecture, catalogue=catalogue, ladder=ladder, onsets=onsets,
        )  # fmt: skip
        enter(case, body.__module__)
        return body

    return register


_registered: dict[str, dict[str, Case]] = defaultdict(dict)  # by the module that registered it


def enter(case: Case, module: str) -> None:
    if any(case.name in cases for cases in _registered.values()):
        raise ValueError(f"two cases are called {case.name!r}")
    _registered[module][case.name] = case


def registered(package: str) -> dict[str, Case]:
    """All cases of a package and the packages below it, by name."""
    path = importlib.import_module(package).__path__
    for module in pkgutil.walk_packages(path, f"{package}."):
        importlib.import_module(module.name)
    found = {name: case for module, cases in _registered.items() if module.startswith(f"{package}.")
             for name, case in cases.items()}  # fmt: skip
    return dict(sorted(found.items()))


def cases_by_module() -> dict[str, dict[str, Case]]:
    """All that have been imported so far."""
    return {module: dict(cases) for module, cases in _registered.items()}


def summary_of(program: Callable[..., object]) -> str:
    return (program.__doc__ or "").strip().splitlines()[0]
