"""Simpler judges, on the very numbers that Undertow recorded: what would they have said, where, and when?

Thresholds are those published or found in the tools' code. What a rule needs and a run does not hold (accuracy,
single weights) is left out of it, never guessed. Every judge speaks at most once of each thing it can say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Report = dict[str, Any]
Matrix = NDArray[np.floating[Any]]

_NUMERIC = ("NUM001", "NUM002", "NUM003", "NUM004")
_EPOCH = 10  # steps between the looks of judges that look once an epoch


class Numbers:
    """A run's numbers as (steps × layers), with the layers in the order in which they ran."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.steps = np.asarray(run.steps)
        parameters = {layer.id for layer in run.layers.parameters}
        self.order = [layer.id for layer in run.layers.in_execution_order() if layer.id in parameters]
        self.paths = run.layers.paths
        names = run.scalar_names
        self.loss = np.asarray(run.scalars("loss")) if "loss" in names else np.full(len(self.steps), np.nan)

    def of(self, quantity: str) -> Matrix:
        if quantity not in self.run.quantities:
            return np.full((len(self.steps), len(self.paths)), np.nan)
        return np.asarray(self.run.matrix(quantity))

    def first(self, hit: NDArray[np.bool_]) -> tuple[int, list[str]] | None:
        """The first step at which any layer is hit, and those layers in execution order."""
        rows = np.flatnonzero(hit.any(axis=1)) if hit.size else []
        if len(rows) == 0:
            return None
        places = np.flatnonzero(hit[rows[0]])
        ranked = [i for i in self.order if i in places] or list(places)
        return int(self.steps[rows[0]]), [self.paths[i] for i in ranked]


def judge_all(run: Any) -> dict[str, list[Report]]:
    numbers = Numbers(run)
    if len(numbers.steps) == 0:
        return {name: [] for name in BASELINES}
    with np.errstate(all="ignore"):
        return {name: sorted(judge(numbers), key=lambda report: report["step"]) for name, judge in BASELINES.items()}


def say(codes: tuple[str, ...], found: tuple[int, list[str]] | None) -> Iterator[Report]:
    if found is not None:
        yield {"codes": list(codes), "step": found[0], "layers": found[1][:8], "alarm": True, "confidence": 1.0}


def nan_only(numbers: Numbers) -> Iterator[Report]:
    bad = np.flatnonzero(~np.isfinite(numbers.loss) & ~_missing(numbers))
    yield from say(_NUMERIC, (int(numbers.steps[bad[0]]), []) if len(bad) else None)
    yield from say(_NUMERIC, numbers.first(numbers.of("gradient_nonfinite_count") > 0))


def _missing(numbers: Numbers) -> NDArray[np.bool_]:
    """Steps without any loss: NaN in the store means not measured, unless gradients say that it was."""
    nonfinite = np.nansum(numbers.of("gradient_nonfinite_count"), axis=1) > 0
    return np.isnan(numbers.loss) & ~nonfinite


def loss_only(numbers: Numbers) -> Iterator[Report]:
    """After 50 steps, or at the end if that is sooner: is the loss still at least 0.97 of what it was?"""
    seen = np.flatnonzero(np.isfinite(numbers.loss))
    count = min(50, len(seen))
    if count >= 10:
        first, last = numbers.loss[seen[:5]].mean(), numbers.loss[seen[count - 5 : count]].mean()
        if last >= first - 0.03 * abs(first):
            yield from say(("OPT005", "OPT002", "OPT001"), (int(numbers.steps[seen[count - 1]]), []))


def original(numbers: Numbers) -> Iterator[Report]:
    """The original's regions: mean norm < 1e-5, largest norm > 100, more than half of the norms < 1e-8."""
    norms = numbers.of("gradient_norm")
    measured = ~np.isnan(norms)
    count = np.cumsum(measured, axis=0)
    mean = np.cumsum(np.where(measured, norms, 0.0), axis=0) / np.maximum(count, 1)
    dead = np.cumsum(measured & (norms < 1e-8), axis=0) / np.maximum(count, 1)
    enough = count >= 10
    yield from say(("GRD004",), numbers.first(enough & (dead > 0.5)))
    yield from say(("GRD001",), numbers.first(enough & (mean < 1e-5)))
    yield from say(("GRD002",), numbers.first(measured & (norms > 100)))


def autotrainer(numbers: Numbers, gated: bool = False) -> Iterator[Report]:
    """First against last gradient, zero entries, and the loss; accuracy is not recorded, so no rule that needs it."""
    norms, zeros = numbers.of("gradient_norm"), numbers.of("gradient_zero_fraction")
    weights = [i for i in numbers.order if numbers.paths[i].endswith("weight") or "weight" in numbers.paths[i]]
    open_gate = np.ones(len(numbers.steps), bool)
    if gated:  # "not yet converged": its accuracy below 0.6, here a loss above 0.6 of its start
        start = np.nanmedian(numbers.loss[:10]) if len(numbers.loss) else np.nan
        open_gate = ~(numbers.loss < 0.6 * start)
    look = (np.arange(len(numbers.steps)) % _EPOCH == _EPOCH - 1) & open_gate
    if len(weights) >= 2:
        first, last = norms[:, weights[0]], norms[:, weights[-1]]
        ratio = first / last
        at_first, at_last = [numbers.paths[weights[0]]], [numbers.paths[weights[-1]]]
        yield from _where(numbers, look & (ratio < 1e-3) & (first < 1e-4), ("GRD001",), at_first)
        yield from _where(numbers, look & (ratio > 70), ("GRD002",), at_last)
        share = np.nanmean(zeros[:, weights], axis=1)
        worst = [numbers.paths[weights[int(np.nanargmax(np.nan_to_num(zeros[:, weights]).mean(axis=0)))]]]
        yield from _where(numbers, look & (share >= 0.7), ("ACT001", "GRD004"), worst)
    yield from _where(numbers, look & (numbers.loss < 0), ("LSS003",), [])
    yield from _where(numbers, look & (numbers.loss >= 1e3), ("OPT001",), [])
    yield from nan_only(numbers)


def autotrainer_gated(numbers: Numbers) -> Iterator[Report]:
    return autotrainer(numbers, gated=True)


def sagemaker(numbers: Numbers) -> Iterator[Report]:
    """VanishingGradient, ExplodingTensor, DeadRelu, WeightUpdateRatio, UnchangedTensor, AllZero."""
    yield from say(("GRD001",), numbers.first(numbers.of("gradient_mean_abs") < 1e-7))
    yield from nan_only(numbers)
    yield from say(("ACT001",), numbers.first(numbers.of("activation_dead_fraction") > 0.5))
    ratio = numbers.of("update_ratio")
    yield from say(("UPD001",), numbers.first(ratio > 10))
    yield from say(("UPD002",), numbers.first((ratio < 1e-8) & (ratio > 0)))
    still = ratio < 1e-5  # every element within a relative 1e-5: so is the norm of the change
    runs = still[2:] & still[1:-1] & still[:-2]
    unchanged = np.zeros_like(still)
    unchanged[2:] = runs
    yield from say(("UPD003", "UPD002"), numbers.first(unchanged))
    yield from say(("GRD004",), numbers.first(numbers.of("gradient_zero_fraction") >= 1.0))


def sagemaker_with_loss(numbers: Numbers) -> Iterator[Report]:
    """The same with LossNotDecreasing: the loss is no lower than ten steps before."""
    yield from sagemaker(numbers)
    rises = np.zeros(len(numbers.loss), bool)
    rises[10:] = numbers.loss[10:] >= numbers.loss[:-10]
    yield from _where(numbers, rises, ("OPT002", "OPT005", "OPT001"), [])


def always_the_rate(numbers: Numbers) -> Iterator[Report]:
    """ "Lower the learning rate", whatever happens."""
    yield from say(("OPT007",), (int(numbers.steps[0]), []))


def _where(numbers: Numbers, hit: NDArray[np.bool_], codes: tuple[str, ...], layers: list[str]) -> Iterator[Report]:
    rows = np.flatnonzero(hit)
    yield from say(codes, (int(numbers.steps[rows[0]]), layers) if len(rows) else None)


BASELINES = {
    "NaN only": nan_only,
    "loss only": loss_only,
    "original's thresholds": original,
    "AutoTrainer's rules": autotrainer,
    "AutoTrainer, gated by loss": autotrainer_gated,
    "SageMaker, six rules": sagemaker,
    "SageMaker, with its loss rule": sagemaker_with_loss,
    "always the learning rate": always_the_rate,
}
