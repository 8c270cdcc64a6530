"""The numbers of a recorded run as the series that analyses take."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from undertow.analyze.gradient_shares import GradientShares, measured_shares, shares_by_structure
from undertow.analyze.series import Flags, Floats, LayerSeries
from undertow.analyze.topology import Topology, topology_of
from undertow.schema import GraphSource, Layer, LayerGraph, LayerTable
from undertow.schema.quantities import FLOW, STORED_SKETCH_WIDTH, GradientState

VALIDATION_NAMES = ("val_loss", "validation_loss", "valid_loss", "eval_loss", "val/loss", "eval/loss")
NOT_SAMPLED = "no step in which what its users send back was measured, finite and not zero"
MOST_SKETCH_NUMBERS = 1 << 25
_NUMBERS_AT_ONCE = 1 << 20  # of a matrix: 4 MB, however long a run is and however many layers it has


class RunNumbers(Protocol):
    """What is asked of a run; `undertow.run.Run` has it."""

    @property
    def steps(self) -> NDArray[np.int64]: ...
    @property
    def layers(self) -> LayerTable: ...
    @property
    def graph(self) -> LayerGraph: ...
    @property
    def quantities(self) -> Sequence[str]: ...
    @property
    def scalar_names(self) -> Sequence[str]: ...
    def matrix(self, quantity: str, rows: slice | None = None) -> NDArray[np.float32]: ...
    def newest_along_connections(self, quantity: str, count: int, first: int = 0) -> NDArray[np.float32]: ...
    def scalars(self, name: str) -> NDArray[np.float64]: ...


class NewestSteps:
    """The newest steps of a run, as if it had no others."""

    def __init__(self, run: RunNumbers, last: int) -> None:
        self._run = run
        self._rows = slice(max(0, len(run.steps) - last), len(run.steps))
        self.layers, self.graph = run.layers, run.graph
        self.quantities, self.scalar_names = run.quantities, run.scalar_names

    @property
    def steps(self) -> NDArray[np.int64]:
        return self._run.steps[self._rows]

    def matrix(self, quantity: str, rows: slice | None = None) -> NDArray[np.float32]:
        own = range(self._rows.start, self._rows.stop)[rows or slice(None)]
        return self._run.matrix(quantity, slice(own.start, own.stop))

    def newest_along_connections(self, quantity: str, count: int, first: int = 0) -> NDArray[np.float32]:
        return self._run.newest_along_connections(quantity, count, self._rows.start + first)

    def scalars(self, name: str) -> NDArray[np.float64]:
        return self._run.scalars(name)[self._rows]


def parts_of(run: RunNumbers, rows: range, width: int = 1) -> Iterator[slice]:
    """The rows of a matrix of `width` numbers a layer, in parts that take little memory each."""
    together = max(1, _NUMBERS_AT_ONCE // max(1, len(run.layers) * width))
    for start in rows[::together]:
        yield slice(start, min(rows.stop, start + together))


@dataclass(frozen=True, slots=True)
class TrainingSeries:
    """What the training loop knows besides gradients; every part is optional. Arrays are in order of steps."""

    loss: Floats | None = None
    validation_loss: Floats | None = None
    learning_rate: Floats | None = None
    update_ratio: Floats | None = None  # (steps × layers), aligned with the gradient norms
    gradient_cosine: Floats | None = None  # of successive gradients, (steps × layers)
    step_seconds: Floats | None = None  # how long steps took
    update_cosine: Floats | None = None  # of the update with the negative gradient, (steps × layers)
    noise_scale: Floats | None = None  # of the micro-batches of a step, (steps × layers)
    unit_activity: dict[str, float] = field(default_factory=dict[str, float])  # layer → share of live units


def measured_layers(run: RunNumbers) -> list[Layer]:
    """Parameters that had a gradient at least once, first executed first. Frozen ones have none to speak of."""
    if "gradient_norm" not in run.quantities:
        return []
    seen: Flags = _recorded(run).any(axis=0)  # pyright: ignore[reportAssignmentType]
    return [layer for layer in run.layers.in_execution_order() if not layer.is_module and seen[layer.id]]


def _recorded(run: RunNumbers) -> Flags:
    """Where a gradient was there to be measured: not where it was None, frozen or not sampled.

    Steps that a loss scaler skipped are left out: overflow is how it finds its scale.
    """
    if "gradient_state" in run.quantities:
        present = run.matrix("gradient_state") == GradientState.PRESENT
    else:
        present = ~np.isnan(run.matrix("gradient_norm"))
    if "step_skipped" in run.scalar_names:
        present &= ~(run.scalars("step_skipped") > 0)[:, None]
    return present


def gradient_norms(run: RunNumbers, layers: list[Layer]) -> LayerSeries:
    columns = [layer.id for layer in layers]
    names = [layer.path for layer in layers]
    counts = [layer.parameter_count or None for layer in layers]
    if not layers:
        return LayerSeries.of([], run.steps, np.empty((len(run.steps), 0)))
    norms = run.matrix("gradient_norm")[:, columns]
    if "gradient_nonfinite_count" in run.quantities:
        norms = np.where(run.matrix("gradient_nonfinite_count")[:, columns] > 0, np.nan, norms)
    return LayerSeries.of(names, run.steps, norms, _recorded(run)[:, columns], counts)


def gradient_sketches(run: RunNumbers, layers: list[Layer], series: LayerSeries) -> dict[str, dict[int, Floats]]:
    """The stored sketches of gradients, which are few; none where reading all of them would take too much memory."""
    size = len(run.steps) * len(run.layers) * STORED_SKETCH_WIDTH
    if "gradient_sketch" not in run.quantities or size > MOST_SKETCH_NUMBERS:
        return {}
    found: dict[str, dict[int, Floats]] = {layer.path: {} for layer in layers}
    before = np.zeros(len(layers), np.int64)  # recorded steps of each layer in the parts so far
    for part in parts_of(run, range(len(run.steps)), STORED_SKETCH_WIDTH):
        table = run.matrix("gradient_sketch", part).reshape(-1, len(run.layers), STORED_SKETCH_WIDTH)
        for place, layer in enumerate(layers):
            own = table[series.recorded[part, place], layer.id]
            rows = np.flatnonzero(np.isfinite(own).all(axis=1))
            found[layer.path] |= zip((before[place] + rows).tolist(), own[rows].astype(np.float64))
        before += np.count_nonzero(series.recorded[part], axis=0)
    return found


def module_network(
    run: RunNumbers, series: LayerSeries, layers: list[Layer]
) -> tuple[LayerSeries | None, Topology | None]:
    paths = [node.path for node in run.graph.nodes if node.path and not node.is_merge]
    if run.graph.source is GraphSource.NONE or not paths:
        return None, None
    table, recorded = _output_gradients(run, paths) or _parameter_gradients(paths, series, layers)
    known = np.flatnonzero(recorded.any(axis=0))
    names = [paths[place] for place in known]
    if not names:
        return None, None
    nodes = LayerSeries.of(names, run.steps, table[:, known], recorded[:, known])
    return nodes, topology_of(run.graph, names)


def network_shares(run: RunNumbers, topology: Topology, window: int) -> tuple[GradientShares, str]:
    """Means over the newest samples, and why some are missing if any are."""
    graph = run.graph
    if graph.source is GraphSource.CALL_ORDER:
        return GradientShares.unknown(topology), "the model is compiled: its graph does not show who feeds whom"
    why = (
        graph.unmeasured or "this run has no shares of gradient: modules were not sampled, or an older version wrote it"
    )
    if not graph.connections:
        return shares_by_structure(topology), why
    share, size = (_means(run.newest_along_connections(name, window)) for name in FLOW.names)
    return measured_shares(topology, graph.connections, share, size), why if graph.unmeasured else NOT_SAMPLED


def _means(samples: NDArray[np.float32]) -> Floats:
    counts = np.count_nonzero(~np.isnan(samples), axis=0)
    return np.where(counts > 0, np.nansum(samples, axis=0, dtype=np.float64) / np.maximum(1, counts), np.nan)


def _output_gradients(run: RunNumbers, paths: list[str]) -> tuple[Floats, Flags] | None:
    """Gradient at the output of every module of the graph, unless some were not recorded; and where it was."""
    if "output_gradient_norm" not in run.quantities:
        return None
    found = [run.layers.get(path) for path in paths]
    modules = [layer for layer in found if layer is not None and layer.is_module]
    if len(modules) < len(paths):
        return None
    ids = [layer.id for layer in modules]
    table = run.matrix("output_gradient_norm")[:, ids].astype(np.float64)
    recorded = ~np.isnan(table)
    if "output_gradient_nonfinite_count" in run.quantities:
        recorded |= run.matrix("output_gradient_nonfinite_count")[:, ids] > 0
    return (table, recorded) if recorded.any(axis=0).all() else None


def _parameter_gradients(paths: list[str], series: LayerSeries, layers: list[Layer]) -> tuple[Floats, Flags]:
    """Norm of the gradient of all parameters that a module owns, together."""
    table = np.full((len(series.steps), len(paths)), np.nan)
    recorded = np.zeros(table.shape, bool)
    for place, path in enumerate(paths):
        columns = [column for column, layer in enumerate(layers) if layer.group == path]
        if columns:
            part = np.where(series.recorded[:, columns], series.values[:, columns], 0.0)
            with np.errstate(over="ignore"):
                norm = np.sqrt(np.square(part).sum(axis=1))
            recorded[:, place] = series.recorded[:, columns].any(axis=1)
            table[:, place] = np.where(recorded[:, place], norm, np.nan)
    return table, recorded


def parameter_topology(graph: LayerGraph, layers: list[Layer]) -> Topology | None:
    """Parameters of one module in a row, the last feeding the first of the next module."""
    if graph.source is GraphSource.NONE or not graph.nodes or not layers:
        return None
    owned: dict[str, list[str]] = {}
    for layer in layers:
        owned.setdefault(layer.group, []).append(layer.path)
    here = {node.id: owned.get(node.path) or [f"({node.id})"] for node in graph.nodes}
    pairs = [pair for node in graph.nodes for pair in pairwise(here[node.id])]
    pairs += [(here[start][-1], here[end][0]) for start, end in graph.edges]
    names = [layer.path for layer in layers]
    return topology_of(pairs, names) if any(name in names for pair in pairs for name in pair) else None


def training_series(run: RunNumbers, layers: list[Layer], whole: RunNumbers) -> TrainingSeries:
    columns = [layer.id for layer in layers]

    def table(quantity: str) -> Floats | None:
        return run.matrix(quantity)[:, columns].astype(np.float64) if quantity in run.quantities and columns else None

    names, shares = run.scalar_names, live_shares(run)
    validation = next((name for name in VALIDATION_NAMES if name in names), None)
    return TrainingSeries(
        loss=_loss(whole),
        validation_loss=None if validation is None else _present(whole.scalars(validation)),
        learning_rate=run.scalars("lr") if "lr" in names else None,
        update_ratio=table("update_ratio"),
        gradient_cosine=table("gradient_cosine"),
        step_seconds=run.scalars("step_time") if "step_time" in names else None,
        update_cosine=table("update_gradient_cosine"),
        noise_scale=table("gradient_noise_scale"),
        unit_activity={layer.path: shares[layer.group] for layer in layers if layer.group in shares},
    )


def _loss(run: RunNumbers) -> Floats | None:
    """The loss of every recorded step. A loss that is NaN stays; a step without one is left out."""
    if "loss" not in run.scalar_names:
        return None
    loss = run.scalars("loss")
    if "backward_count" in run.scalar_names:
        loss = loss[run.scalars("backward_count") > 0]
        return loss if len(loss) else None
    return _present(loss)


def _present(values: Floats) -> Floats | None:
    known = values[~np.isnan(values)]
    return known if len(known) else None


def live_shares(run: RunNumbers) -> dict[str, float]:
    """Share of live units of every module whose units were watched, newest value."""
    return {path: 1 - dead for path, dead in newest_values(run, "activation_dead_fraction").items()}


def newest_values(run: RunNumbers, quantity: str) -> dict[str, float]:
    """The newest value of every module that has one."""
    if quantity not in run.quantities:
        return {}
    table = run.matrix(quantity)
    known = {layer.path: _present(table[:, layer.id].astype(np.float64)) for layer in run.layers if layer.is_module}
    return {path: float(values[-1]) for path, values in known.items() if values is not None}
