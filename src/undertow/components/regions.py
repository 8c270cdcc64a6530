"""Where and when gradients vanish, explode or are dead: runs in time, joined along the graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from undertow.analyze.series import BLOCK, Counts, Flags, Floats, LayerSeries, column_median
from undertow.analyze.topology import Topology

VANISHING_NORM = 1e-5
VANISHING_RMS = VANISHING_NORM / np.sqrt(1000)  # the same limit for a tensor of 1000 elements
VANISHING_SHARE = 1e-4  # of the network's median RMS gradient
EXPLODING_NORM = 100.0
DEAD_NORM = 1e-8
# Samples in a row: a fifth of the history, at least 3 and at most 10. A few zeros (dropped blocks) are no vanishing.
PERSISTENCE = (3, 10)
HALF_A_DIGIT = 1e-9  # 1e-6 is one decade below 1e-5, whatever rounding says


@dataclass(frozen=True, slots=True)
class Runs:
    """Per layer: the longest and the current run of affected samples; steps are −1 where there is none."""

    longest: Counts
    longest_start: Counts  # steps
    longest_end: Counts
    current: Counts  # length of the run that reaches the newest sample
    ended: Counts  # runs that came to an end
    total: Counts  # affected samples


@dataclass(frozen=True, slots=True)
class Region:
    """Joined layers, first executed first."""

    layers: tuple[int, ...]
    start_step: int
    end_step: int
    samples: int
    ongoing: bool
    decades: float  # how far beyond the limit, at its worst typical layer


def _vanishing(series: LayerSeries, unit: float) -> tuple[Flags, Floats]:
    """Affected samples of `series.samples`, and decades below the limit.

    A norm below 1e-5 units vanishes. Where all sizes are known, a small tensor must also be small per element, and any
    layer whose RMS gradient is below a ten-thousandth of the network's median vanishes too.
    """
    samples = series.samples
    smallest = VANISHING_NORM * unit
    below = samples < smallest
    limit = np.full(samples.shape[1], smallest)
    if samples.size and (series.sizes > 0).all():
        root = np.sqrt(series.sizes)
        limit = np.minimum(smallest, VANISHING_RMS * unit * root)
        below = samples < limit
        if len(root) >= 3:
            typical = _network_median(series, root)
            relative = VANISHING_SHARE * typical[:, None] * root
            with np.errstate(invalid="ignore"):
                below |= samples < relative
            limit = np.maximum(limit, np.median(relative, axis=0))
    with np.errstate(divide="ignore"):
        return below, np.log10(limit) - np.log10(column_median(np.where(below, samples, np.nan)))


def _network_median(series: LayerSeries, root: Floats) -> Floats:
    """Median RMS gradient of the network's live layers at every step; the newest one known where there is none."""
    typical = np.full(len(series.steps), np.nan)
    rows = max(1, BLOCK // max(1, len(series.names)))
    for start in range(0, len(typical), rows):
        part = np.ascontiguousarray(series.values[start : start + rows])
        part = np.where(np.isfinite(part) & (part > 0), part / root, np.nan)
        typical[start : start + rows] = column_median(part.T)
    newest = typical[~np.isnan(typical)]
    return np.where(np.isnan(typical), newest[-1] if len(newest) else 0.0, typical)


@dataclass(frozen=True, slots=True)
class Extremes:
    """Samples outside the usable range, and how many decades outside. They are costly to find: once per analysis."""

    vanishing: Flags
    decades_below: Floats
    exploding: Flags
    decades_above: Floats

    @classmethod
    def of(cls, series: LayerSeries, smallest: float = 1.0, largest: float = 1.0) -> Extremes:
        """A norm above 100 units, or infinite, explodes; at its worst it is so many decades above.

        `smallest`, at most one, and `largest`, at least one, are the scale of a loss that is small or large itself.
        """
        limit = EXPLODING_NORM * largest
        with np.errstate(invalid="ignore"):
            above = series.samples > limit
        top = np.where(above, series.samples, limit).max(axis=0, initial=limit)
        return cls(*_vanishing(series, smallest), above, np.log10(top) - np.log10(limit))


def severity_level(decades: float) -> int:
    """0 mild (less than a decade beyond the limit) … 3 critical (three or more, or infinitely far)."""
    return 3 if np.isnan(decades) else int(np.clip(np.floor(min(decades, 9.0) + HALF_A_DIGIT), 0, 3))


def dead_flags(series: LayerSeries) -> Flags:
    with np.errstate(invalid="ignore"):
        return series.samples < DEAD_NORM


def runs_of(flags: Flags, series: LayerSeries) -> Runs:
    """Run lengths of every column at once: the length of the run that ends at each sample, then its maximum."""
    columns = len(series.names)
    longest, current, ended, total = (np.zeros(columns, np.int64) for _ in range(4))
    start, end = np.full(columns, -1, np.int64), np.full(columns, -1, np.int64)
    touched = np.flatnonzero(flags.any(axis=0))
    if len(touched):
        part = flags[:, touched]
        index = np.arange(1, len(part) + 1, dtype=np.int64)[:, None]
        length = index - np.maximum.accumulate(np.where(part, 0, index), axis=0)
        last = len(part) - 1 - np.argmax(length[::-1], axis=0)  # the latest of equally long ones
        longest[touched], current[touched] = length.max(axis=0), length[-1]
        steps = series.sample_steps
        start[touched], end[touched] = steps[last - longest[touched] + 1, touched], steps[last, touched]
        ended[touched], total[touched] = (part[:-1] & ~part[1:]).sum(axis=0), part.sum(axis=0)
    return Runs(longest, start, end, current, ended, total)


def recent_regions(
    series: LayerSeries,
    flags: Flags,
    decades: Floats,
    *,
    persistence: tuple[int, int],
    window: int,
    current_step: int | None,
    topology: Topology | None,
) -> list[Region]:
    """Runs within the newest `window` samples, one region for neighbours in the graph whose runs overlap in time.

    An old spike that has left the window marks nothing.
    """
    recent = flags[-window:] if window else flags
    runs = runs_of(flags, series)
    enough = np.minimum(np.clip(series.counts // 5, *persistence), np.maximum(1, series.counts))
    layers = [int(layer) for layer in np.flatnonzero(recent.any(axis=0) & (runs.longest >= enough))]
    groups = _joined(layers, runs, topology)
    return [
        Region(
            layers=tuple(group),
            start_step=min(int(runs.longest_start[layer]) for layer in group),
            end_step=max(int(runs.longest_end[layer]) for layer in group),
            samples=max(int(runs.longest[layer]) for layer in group),
            ongoing=any(is_ongoing(series, flags, layer, current_step) for layer in group),
            decades=max(float(decades[layer]) for layer in group),
        )
        for group in groups
    ]


def is_ongoing(series: LayerSeries, flags: Flags, layer: int, current_step: int | None) -> bool:
    """Whether the newest sample up to `current_step` is affected, and is recent enough to speak for that step."""
    steps = series.sample_steps[:, layer]
    known = np.flatnonzero(steps >= 0)
    if current_step is not None:
        known = known[steps[known] <= current_step]
    if not len(known):
        return False
    stride = int(np.median(np.diff(steps[known]))) if len(known) > 1 else 1
    fresh = current_step is None or current_step - int(steps[known[-1]]) <= max(1, stride)
    return fresh and bool(flags[known[-1], layer])


def _joined(layers: list[int], runs: Runs, topology: Topology | None) -> list[list[int]]:
    if topology is None:
        return [[layer] for layer in layers]
    group_of = {layer: [layer] for layer in layers}
    for a, b in topology.edges:
        if a not in group_of or b not in group_of or group_of[a] is group_of[b]:
            continue
        if runs.longest_start[a] <= runs.longest_end[b] and runs.longest_start[b] <= runs.longest_end[a]:
            small, large = sorted((group_of[a], group_of[b]), key=len)
            large += small
            group_of |= dict.fromkeys(small, large)
    ordered = sorted(layers, key=topology.position.__getitem__)
    groups = {id(group_of[layer]): group_of[layer] for layer in ordered}
    return [sorted(group, key=topology.position.__getitem__) for group in groups.values()]
