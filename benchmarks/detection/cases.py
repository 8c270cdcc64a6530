"""The cases of all tiers in one shape: what is true of a training, and how to run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

TIERS = ("development", "practice", "validation")
TWIN = " (twin)"


@dataclass(frozen=True, slots=True)
class Truth:
    """`codes` are the right answers, the best first; a healthy case has none. `twin`: what it is compared with."""

    tier: str
    name: str
    steps: int
    run: Callable[[int], dict[str, float]]  # the training, by its seed
    codes: tuple[str, ...] = ()
    layers: frozenset[str] = frozenset()
    onset: int = 0
    bites: str = ""
    twin: str = ""

    @property
    def is_sick(self) -> bool:
        return bool(self.codes)

    def accepts(self, layer: str) -> bool:
        return any(layer == truth or layer.startswith(f"{truth}.") for truth in self.layers)


def load(tier: str) -> dict[str, Truth]:
    cases = _development() if tier == "development" else _programs(tier)
    return {case.name: case for case in cases}


def _development() -> list[Truth]:
    from undertow.faults.training import hospital, zoo

    tier, cases = "development", []
    for name, training in hospital().items():

        def run(seed: int, training=training, fault_on: bool = True) -> dict[str, float]:
            return training.run(seed=seed, fault_on=fault_on)

        def run_twin(seed: int, run=run) -> dict[str, float]:
            return run(seed, fault_on=False)

        codes = getattr(training, "codes", ()) or (training.code,)
        if codes[0] == "UPD004":  # frozen on purpose is a remark: for alarms, a healthy training
            cases.append(Truth(tier, name, training.steps, run))
            continue
        twin = name + TWIN
        cases.append(
            Truth(tier, name, training.steps, run, codes, training.layers, training.onset, training.bites, twin)
        )
        cases.append(Truth(tier, twin, training.steps, run_twin))
    cases += [
        Truth(tier, name, training.steps, lambda seed, t=training: t.run(seed=seed)) for name, training in zoo().items()
    ]
    return cases


def _programs(tier: str) -> list[Truth]:
    from undertow.faults.case import cases

    return [
        Truth(
            tier, case.name, case.steps, lambda seed, c=case: c.run(seed=seed), case.codes, case.layers,
            case.onset, case.bites, case.twin,
        )
        for case in cases(tier).values()
    ]  # fmt: skip
