"""How programs of the corpus are registered: healthy ones, and those that can make one of several mistakes.

A patient of the hospital has one fault and a switch for it: see `undertow.demos.case.sick`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from undertow.demos.case import Case, Fault, enter, summary_of

Script = Callable[[int, int], dict[str, float]]  # steps and seed
ProgramBody = Callable[[int, int, str], dict[str, float]]  # steps, seed and the name of the mistake, or ""


def healthy(*, steps: int, architecture: str = "", adversarial: str = "") -> Callable[[Script], Script]:
    """Register a program that has no fault to switch on."""

    def register(script: Script) -> Script:
        def body(steps: int, seed: int, fault: Fault) -> dict[str, float]:
            return script(steps, seed)

        name, summary = script.__name__, summary_of(script)
        case = Case(name, summary, steps, body, architecture=architecture, adversarial=adversarial)
        enter(case, script.__module__)
        return script

    return register


@dataclass(frozen=True, slots=True)
class Program:
    """A registered program; `mistake` adds one of the faults it can be run with."""

    healthy: Case
    body: ProgramBody

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
        def body(steps: int, seed: int, fault: Fault) -> dict[str, float]:
            return self.body(steps, seed, name if fault else "")

        twin = self.healthy
        case = Case(
            name, summary, steps or twin.steps, body, codes, frozenset(layers), onset, bites or twin.bites, silent,
            change, twin.name,
        )  # fmt: skip
        enter(case, self.body.__module__)


def program(*, steps: int, bites: str = "loss", adversarial: str = "") -> Callable[[ProgramBody], Program]:
    """Register a program `(steps, seed, mistake)`; with the empty mistake it is healthy."""

    def register(script: ProgramBody) -> Program:
        def body(steps: int, seed: int, fault: Fault) -> dict[str, float]:
            return script(steps, seed, "")

        case = Case(script.__name__, summary_of(script), steps, body, bites=bites, adversarial=adversarial)
        enter(case, script.__module__)
        return Program(case, script)

    return register
