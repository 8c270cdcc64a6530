"""Histories of many layers as (steps × layers) arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from undertow.schema.seeds.arrays import InputError
from undertow.schema.seeds.history import GradientHistory

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Counts = NDArray[np.int64]

BLOCK = 1 << 21  # elements that are worked on at a time: small enough for the caches, large enough to be fast


@dataclass(frozen=True)
class LayerSeries:
    """One number per step and layer. `recorded` tells a value that is NaN from a step without a value.

    Arrays are stored column by column, because nearly all work goes along time.
    """

    names: tuple[str, ...]
    steps: Counts
    values: Floats
    recorded: Flags
    parameter_counts: tuple[int | None, ...]

    @classmethod
    def of(
        cls,
        names: Iterable[str],
        steps: Counts,
        values: NDArray[Any],
        recorded: Flags | None = None,
        parameter_counts: Iterable[int | None] | None = None,
    ) -> LayerSeries:
        """From a (steps × layers) array; without `recorded`, NaN means that nothing was recorded."""
        table = np.asfortranarray(values, dtype=np.float64)
        known = ~np.isnan(table) if recorded is None else np.asfortranarray(recorded)
        labels = tuple(names)
        counts = (None,) * len(labels) if parameter_counts is None else tuple(parameter_counts)
        return cls(labels, np.asarray(steps, np.int64), table, known, counts)

    @classmethod
    def from_histories(cls, histories: Mapping[str, Any] | Iterable[GradientHistory]) -> LayerSeries:
        """Line histories up by step. Plain arrays of norms are taken as histories of steps 0, 1, 2 …"""
        table = named_histories(histories)
        lengths = {len(history) for history in table.values()}
        columns = [np.fromiter(history.step_numbers, np.int64) for history in table.values()]
        for name, column in zip(table, columns):
            if len(column) > 1 and (np.diff(column) <= 0).any():
                raise InputError(f"layer {name!r}: steps are repeated or out of order")
            if len(column) != len(table[name].gradient_norms):
                raise InputError(f"layer {name!r}: {len(table[name].gradient_norms)} norms but {len(column)} steps")
        aligned = len(lengths) == 1 and all(np.array_equal(columns[0], column) for column in columns)
        steps = columns[0] if aligned else np.unique(np.concatenate([*columns, np.empty(0, np.int64)]))
        values = np.full((len(steps), len(table)), np.nan, order="F")
        recorded = np.zeros((len(steps), len(table)), dtype=bool, order="F")
        for place, (history, column) in enumerate(zip(table.values(), columns)):
            rows = slice(None) if aligned else np.searchsorted(steps, column)
            values[rows, place] = np.fromiter(history.gradient_norms, np.float64)
            recorded[rows, place] = True
        return cls(tuple(table), steps, values, recorded, tuple(h.parameter_count for h in table.values()))

    @cached_property
    def index(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}

    @cached_property
    def sizes(self) -> Floats:
        """Parameters per layer; NaN where that is not known."""
        return np.array([np.nan if count is None else count for count in self.parameter_counts], np.float64)

    @cached_property
    def counts(self) -> Counts:
        """Samples recorded per layer."""
        return self.recorded.sum(axis=0)

    @cached_property
    def complete(self) -> bool:
        """Every layer was recorded at every step."""
        return bool(self.recorded.all())

    @cached_property
    def samples(self) -> Floats:
        """Every layer's recorded values pushed to the end of its column, NaN before them."""
        if self.complete:
            return self.values
        order = np.argsort(self.recorded, axis=0, kind="stable")
        return np.asfortranarray(np.take_along_axis(np.where(self.recorded, self.values, np.nan), order, axis=0))

    @cached_property
    def sample_steps(self) -> Counts:
        """The step of every entry of `samples`; −1 where there is none."""
        if self.complete:
            return np.broadcast_to(self.steps[:, None], self.values.shape)
        order = np.argsort(self.recorded, axis=0, kind="stable")
        steps = np.where(np.take_along_axis(self.recorded, order, axis=0), self.steps[order], -1)
        return np.asfortranarray(steps)

    def blocks(self) -> Iterator[slice]:
        """Runs of layers that together fill the caches."""
        width = max(1, BLOCK // max(1, len(self.steps)))
        return (slice(start, start + width) for start in range(0, len(self.names), width))

    def column(self, layer: int) -> tuple[Counts, Floats]:
        """Steps and values of one layer, as recorded."""
        if self.complete:
            return self.steps, self.values[:, layer]
        known = self.recorded[:, layer]
        return self.steps[known], self.values[known, layer]


def named_histories(histories: Mapping[str, Any] | Iterable[GradientHistory]) -> dict[str, GradientHistory]:
    if isinstance(histories, Mapping):
        given = cast("Mapping[str, Any]", histories)
        return {
            str(name): value if isinstance(value, GradientHistory) else GradientHistory.from_norms(str(name), value)
            for name, value in given.items()
        }
    table: dict[str, GradientHistory] = {}
    given = list(histories)
    if not all(isinstance(one, GradientHistory) for one in given):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(
            "these are no histories: a layer has no name",
            way_out="Give a mapping of layer names to norms, {'fc1': [0.5, 0.4]}, or a list of GradientHistory",
        )
    for history in given:
        if history.layer_name in table:
            raise InputError(f"layer {history.layer_name!r} is given twice")
        table[history.layer_name] = history
    return table


def successive_cosines(table: Mapping[str, GradientHistory], series: LayerSeries) -> Floats | None:
    """(steps × layers), from the cosines given or else from successive sketches; None when there are neither."""
    columns: dict[str, Floats] = {}
    for name, history in table.items():
        if not (history.gradient_cosines or history.gradient_sketches):
            continue
        given = np.array([np.nan if c is None else c for c in history.gradient_cosines], dtype=np.float64)
        if np.isnan(given).all() and any(sketch is not None for sketch in history.gradient_sketches):
            given = np.full(len(history), np.nan)
            for place, (before, after) in enumerate(pairwise(history.gradient_sketches), 1):
                if before is not None and after is not None and len(before) == len(after):
                    size = float(np.linalg.norm(before) * np.linalg.norm(after))
                    given[place] = float(np.dot(before, after)) / size if size > 0 else np.nan
        if len(given) == len(history) and not np.isnan(given).all():
            columns[name] = given
    if not columns:
        return None
    cosines = np.full(series.values.shape, np.nan)
    for name, column in columns.items():
        layer = series.index[name]
        cosines[series.recorded[:, layer], layer] = column
    return cosines


def sorted_quantile(ordered: Floats, count: Counts, share: float) -> Floats:
    """Of every sorted column, whose first `count` values are known; NaN where there are none."""
    if not len(ordered):
        return np.full(len(count), np.nan)
    last = np.maximum(0, count - 1)
    place: Floats = share * last
    low: Counts = np.floor(place).astype(np.int64)
    high: Counts = np.minimum(low + 1, last)
    below: Floats = np.take_along_axis(ordered, low[None], axis=0)[0]
    above: Floats = np.take_along_axis(ordered, high[None], axis=0)[0]
    with np.errstate(invalid="ignore"):
        return np.where(high > low, below + (place - low) * (above - below), below)


def column_median(values: Floats) -> Floats:
    """Of what is known in every column; NaN where nothing is."""
    return sorted_quantile(np.sort(values, axis=0), (~np.isnan(values)).sum(axis=0), 0.5)  # NaN is sorted to the end
