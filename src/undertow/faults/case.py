"""A program that can be healthy or make one of several mistakes, and the truth about each mistake."""

from __future__ import annotations

import importlib
import pkgutil
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

Body = Callable[[int, int, str], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Case:
    """One mistake in one program, or none: then there are no `codes`.

    `codes` are the right answers, the best one first. `layers` are the paths that a right answer may name, each with
    all below it; empty when the cause is global. `twin` is the healthy case of the same program. `bites` is the
    metric that shows the harm; a `silent` fault shows in no accuracy, so its metric is the direct effect.
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
    change: str = ""
    twin: str = ""
    adversarial: str = ""  # a healthy program: the naive rule that it breaks

    @property
    def is_sick(self) -> bool:
        return bool(self.codes)

    def run(self, steps: int | None = None, seed: int = 0, fault_on: bool = True) -> dict[str, float]:
        """Train, and give the final metrics."""
        return self.body(steps or self.steps, seed, self.name if fault_on and self.is_sick else "")

    def accepts(self, layer: str) -> bool:
        return any(layer == truth or layer.startswith(f"{truth}.") for truth in self.layers)


_tiers: dict[str, dict[str, Case]] = defaultdict(dict)  # by the package that the program is in


@dataclass(frozen=True, slots=True)
class Program:
    """A registered program; `mistake` adds one of the faults it can be run with."""

    healthy: Case

    def mistake(
        self,
        name: str,
        *codes: str,
        summary: str,
        change: str,
        layers: Iterable[str] = (),
        onset: int = 0,
        bites: str = "",
        silent: bool = False,
        steps: int = 0,
    ) -> None:
        twin = self.healthy
        case = Case(
            name, summary, steps or twin.steps, twin.body, codes, frozenset(layers), onset, bites or twin.bites, silent,
            change, twin.name,
        )  # fmt: skip
        _enter(case)


def program(*, steps: int, bites: str = "loss", adversarial: str = "") -> Callable[[Body], Program]:
    """Register a program `(steps, seed, fault)`; with the empty fault it is healthy."""

    def register(body: Body) -> Program:
        summary = (body.__doc__ or "").strip().splitlines()[0]
        case = Case(body.__name__, summary, steps, body, bites=bites, adversarial=adversarial)
        _enter(case)
        return Program(case)

    return register


def cases(tier: str) -> dict[str, Case]:
    """All cases of `undertow.faults.<tier>` by name, the sick ones first."""
    package = importlib.import_module(f"undertow.faults.{tier}")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_tiers[package.__name__].items(), key=lambda entry: (not entry[1].is_sick, entry[0])))


def patients(tier: str) -> dict[str, Case]:
    return {name: case for name, case in cases(tier).items() if case.is_sick}


def healthy(tier: str) -> dict[str, Case]:
    """All programs without a mistake, the twins of the sick ones among them."""
    return {name: case for name, case in cases(tier).items() if not case.is_sick}


def controls(tier: str) -> dict[str, Case]:
    """The healthy programs that are nobody's twin."""
    twins = {case.twin for case in patients(tier).values()}
    return {name: case for name, case in healthy(tier).items() if name not in twins}


def _enter(case: Case) -> None:
    tier = _tiers[case.body.__module__.rpartition(".")[0]]
    if case.name in tier:
        raise ValueError(f"two cases are called {case.name!r}")
    tier[case.name] = case
