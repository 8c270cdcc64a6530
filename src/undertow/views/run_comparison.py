"""`undertow.compare`: where runs diverge, what differs in their configuration, and their curves over the same steps."""

import os
from dataclasses import dataclass

import numpy as np

from undertow.errors import SettingError
from undertow.run import Run, open_run
from undertow.schema import Health, Severity
from undertow.views.line_points import line_of_scalar
from undertow.views.run_config_diff import Difference, differences_of
from undertow.views.run_divergence import TOLERANCE, LayerDivergence, layer_divergences
from undertow.views.verdict import judge

CURVE_POINTS = 200
_OF_TIME = ("step_time", "overhead")  # beginnings of scalars that differ between any two runs


@dataclass(frozen=True, slots=True)
class ComparedRun:
    name: str
    folder: str
    status: str
    health: Health | None
    recorded: int  # steps
    first_step: int | None
    last_step: int | None
    finding: str | None  # code and name of the first alarm or remark
    finding_step: int | None
    severity: Severity | None


@dataclass(frozen=True, slots=True)
class Curve:
    """A scalar over the same intervals of steps for all runs: means of what is finite, None where there is nothing."""

    name: str
    steps: tuple[int, ...]  # first of each interval
    values: tuple[tuple[float | None, ...], ...]  # a row for each run
    nonfinite_step: tuple[int | None, ...]  # of each run: the first interval in which it is not finite


@dataclass(frozen=True, slots=True)
class Pair:
    """The first run and one of the others."""

    run: int  # place of the other one
    common_steps: int
    common_layers: int
    step: int | None  # where a gradient differs for the first time; None: nowhere
    layers: tuple[str, ...]  # those that differ at that step, as executed
    clear_step: int | None  # where one differs by more than a tenth, or in kind
    clear_layers: tuple[str, ...]
    reason: str  # why nothing could be compared
    scalars: dict[str, int]  # first step at which a scalar differs, by name
    by_layer: tuple[LayerDivergence, ...]
    only_in_first: tuple[str, ...]  # layers
    only_in_other: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    runs: tuple[ComparedRun, ...]
    pairs: tuple[Pair, ...]
    differences: tuple[Difference, ...]
    curves: tuple[Curve, ...]

    @property
    def step(self) -> int | None:
        """Where the first run and any other diverge for the first time; None: nowhere."""
        return min((pair.step for pair in self.pairs if pair.step is not None), default=None)

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers that differ there, as executed."""
        return next((pair.layers for pair in self.pairs if pair.step == self.step), ())

    @property
    def layer(self) -> str | None:
        """The first of them."""
        return self.layers[0] if self.layers else None


def compare(*runs: Run | str | os.PathLike[str]) -> Comparison:
    """Compare two or more runs, each an open run, a run folder, or the name of a run; all against the first."""
    if len(runs) < 2:
        raise SettingError(f"a comparison needs two runs, not {len(runs)}", way_out="Give at least two")
    opened = [run if isinstance(run, Run) else open_run(run) for run in runs]
    first, *others = opened
    return Comparison(
        tuple(_described(run) for run in opened),
        tuple(_pair(first, other, place) for place, other in enumerate(others, 1)),
        differences_of(opened),
        tuple(_curve(name, opened) for name in _common_scalars(opened)),
    )


def _described(run: Run) -> ComparedRun:
    diagnosis, steps = judge(run).diagnosis, run.steps
    finding = (None, None, None)
    if diagnosis.findings:
        found = diagnosis.findings[0]
        finding = (f"{found.code} {found.name}", found.first_step, found.severity)
    return ComparedRun(
        run.name,
        str(run.folder.resolve()),
        run.status,
        diagnosis.health,
        len(steps),
        int(steps[0]) if len(steps) else None,
        int(steps[-1]) if len(steps) else None,
        *finding,
    )


def _pair(first: Run, other: Run, place: int) -> Pair:
    found, by_layer = layer_divergences(first, other)
    clear = [one for one in by_layer if one.clear_step is not None]
    clear_step = min((one.clear_step for one in clear if one.clear_step is not None), default=None)
    here, there = ([layer.path for layer in run.layers.parameters] for run in (first, other))
    return Pair(
        place,
        found.common_steps,
        found.common_layers,
        found.step,
        found.layers,
        clear_step,
        tuple(one.layer for one in clear if one.clear_step == clear_step),
        found.reason,
        _scalar_divergences(first, other),
        tuple(by_layer),
        tuple(path for path in here if path not in other.layers),
        tuple(path for path in there if path not in first.layers),
    )


def _scalar_divergences(first: Run, other: Run) -> dict[str, int]:
    """Of numbers that training makes, not of time."""
    steps, here, there = np.intersect1d(first.steps, other.steps, return_indices=True)
    found: dict[str, int] = {}
    for name in _common_scalars([first, other]):
        one, two = first.scalars(name)[here], other.scalars(name)[there]
        with np.errstate(invalid="ignore"):
            apart = np.abs(one - two) > TOLERANCE * np.maximum(np.abs(one), np.abs(two))
        apart |= np.isinf(one) != np.isinf(two)
        differs = np.flatnonzero(apart)
        if len(differs):
            found[name] = int(steps[differs[0]])
    return found


def _common_scalars(runs: list[Run]) -> list[str]:
    names = [name for name in runs[0].scalar_names if all(name in run.scalar_names for run in runs[1:])]
    return sorted((name for name in names if not name.startswith(_OF_TIME)), key=lambda name: name != "loss")


def _curve(name: str, runs: list[Run]) -> Curve:
    ends = [int(end) for run in runs if len(run.steps) for end in (run.steps[0], run.steps[-1])]
    if not ends:
        return Curve(name, (), tuple(() for _ in runs), tuple(None for _ in runs))
    first, last = min(ends), max(ends)
    width = max(1, -(-(last - first + 1) // CURVE_POINTS))
    starts = np.arange(first, last + 1, width)
    means = tuple(_means(run, name, first, width, len(starts)) for run in runs)
    return Curve(name, tuple(starts.tolist()), means, tuple(_bad_step(run, name) for run in runs))


def _means(run: Run, name: str, first: int, width: int, count: int) -> tuple[float | None, ...]:
    values = run.scalars(name)
    there = np.isfinite(values)
    places = (run.steps[there] - first) // width
    counts = np.bincount(places, minlength=count)
    totals = np.bincount(places, values[there], minlength=count)
    return tuple(total / many if many else None for total, many in zip(totals.tolist(), counts.tolist()))


def _bad_step(run: Run, name: str) -> int | None:
    line = line_of_scalar(run.steps, run.scalars(name), max(1, len(run.steps)))
    return next(iter(line.steps[line.nonfinite].tolist()), None)
