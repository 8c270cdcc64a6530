"""Gradient flow as rows: modules as executed, who feeds whom, and the gradient of each over the steps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from undertow.run import Run
from undertow.schema import Layer
from undertow.schema.seeds.flow_records import GradientFlowVisualization, NodeType
from undertow.views.grid import Grid, grid_of
from undertow.views.palette import Cell
from undertow.views.tiles import fits, in_reading_order
from undertow.views.verdict import judge

QUANTITY = "gradient_norm"
NEWEST = 512  # recorded steps that gains and notes are taken from: quick however long the run is
_ENOUGH = 0.2  # of the rows there is room for: fewer would say too little
_NOTES = {NodeType.BOTTLENECK: "bottleneck", NodeType.DEAD: "dead", NodeType.AMPLIFIER: "amplifier",
          NodeType.NON_FINITE: "not finite"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FlowRow:
    """A module that owns parameters, or several that share a row."""

    name: str
    modules: tuple[str, ...]
    gain: float | None = None  # of what the modules it feeds send back; of a single module only, as is the share
    share: float | None = None  # of all gradient from the loss to the inputs, that passes through it
    notes: tuple[str, ...] = ()
    on_main_path: bool = False  # the one that most gradient takes


@dataclass(frozen=True, slots=True)
class FlowLink:
    """From a row to a later one that it feeds; the gradient comes back the other way."""

    start: int
    end: int
    gain: float | None
    share: float | None = None  # of all gradient from the loss to the inputs, that comes back along it


@dataclass(frozen=True, slots=True)
class FlowRows:
    rows: tuple[FlowRow, ...]
    links: tuple[FlowLink, ...]
    grid: Grid  # rows × columns; the norm over all parameters of a row


def flow_rows(
    run: Run,
    span: tuple[int, int],
    columns: int,
    most: int,
    globs: Sequence[str] = (),
    flow: GradientFlowVisualization | None = None,
) -> FlowRows:
    """At most `most` rows: modules that share the beginning of their path, or follow each other, are put together.

    `flow` is what is known of it already; else it is that of the newest steps.
    """
    nodes = set[str]() if flow is None else {node.layer_name for node in flow.flow_network.nodes}
    flow = flow or run.flow(last=NEWEST, findings=judge(run).diagnosis.findings)
    layers = in_reading_order(run.layers.parameters)
    owned: dict[str, list[Layer]] = {}
    tied: dict[str, list[Layer]] = {}  # by modules that use what another one owns
    # Without a graph of modules the nodes are parameters; those of plain arrays stand for themselves.
    home = {layer.path: layer.path if layer.path in nodes else _owner(layer.path) for layer in layers}
    for layer in layers:
        owned.setdefault(home[layer.path], []).append(layer)
        for path in layer.shared_with:
            tied.setdefault(_owner(path), []).append(layer)
    executed = [node.path for node in run.graph.nodes if node.path and not node.is_merge]
    executed += [node.layer_name for node in flow.flow_network.nodes]
    names = _with_nodes(list(owned), list(dict.fromkeys(home.get(name, name) for name in executed)))
    owned = {name: owned.get(name) or tied.get(name, []) for name in names}
    if globs:
        names = [name for name in names if any(fits(one, globs) for one in (name, *owned[name]))]
    groups = _groups(names, most)
    rows = tuple(_row(group, flow) for group in groups)
    members = [[layer for name in group for layer in owned[name]] for group in groups]
    whole = grid_of(run.reader, QUANTITY, [layer for group in members for layer in group], span, columns)
    return FlowRows(rows, _links(groups, flow, home), _combined(whole, rows, [len(group) for group in members]))


def _owner(path: str) -> str:
    return path.rpartition(".")[0] or path


def _with_nodes(owners: list[str], nodes: list[str]) -> list[str]:
    """Modules of the graph that own nothing, as with tied weights, stand after the one executed before them."""
    names = list(owners)
    known = set(names)
    for before, node in zip([None, *nodes], nodes):
        if node not in known:
            names.insert(names.index(before) + 1 if before in known else 0, node)
            known.add(node)
    return names


def _groups(names: list[str], most: int) -> list[list[str]]:
    pieces = [[name] for name in names]
    if len(names) <= most:
        return pieces
    for depth in range(max(name.count(".") for name in names) + 1, 0, -1):
        together: dict[str, list[str]] = {}
        for name in names:
            together.setdefault(".".join(name.split(".")[:depth]), []).append(name)
        if len(together) <= most:
            if len(together) >= _ENOUGH * most:
                return list(together.values())
            break
        pieces = list(together.values())
    each = -(-len(pieces) // most)
    starts = range(0, len(pieces), each)
    return [[name for piece in pieces[start : start + each] for name in piece] for start in starts]


def _row(group: list[str], flow: GradientFlowVisualization) -> FlowRow:
    nodes = {node.layer_name: node for node in flow.flow_network.nodes}
    known = notes_of(flow)
    notes = dict.fromkeys(word for name in group for word in known.get(name, ()))
    main = set(flow.critical_paths[0].layers if flow.critical_paths else ())
    alone = nodes.get(group[0]) if len(group) == 1 else None
    gain, share = (None, None) if alone is None else (alone.gain, alone.flow_share)
    return FlowRow(_name(group), tuple(group), gain, share, tuple(notes), not main.isdisjoint(group))


def _name(group: list[str]) -> str:
    """What they share, or where they begin and end: `blocks.3 (6 modules)`, `blocks.0 … blocks.4 (30 modules)`."""
    if len(group) == 1:
        return group[0]
    first, last = group[0].split("."), group[-1].split(".")
    shared = 0
    while all(name.split(".")[: shared + 1] == first[: shared + 1] for name in group) and shared < len(first):
        shared += 1
    inside = {name.split(".")[shared] for name in group if name.count(".") >= shared}
    whole = ".".join(first[:shared])
    if not whole or (len(inside) > 1 and all(part.isdecimal() for part in inside)):
        whole = f"{'.'.join(first[: shared + 1])} … {'.'.join(last[: shared + 1])}"
    return f"{whole} ({len(group)} modules)"


def notes_of(flow: GradientFlowVisualization) -> dict[str, list[str]]:
    """What is to be said of each module: what kind of node it is, and what is wrong with its parameters. Of a gradient
    that is zero by now nobody says that it explodes."""
    found: dict[str, dict[str, None]] = {}
    for node in flow.flow_network.nodes:
        if node.node_type in _NOTES:
            found.setdefault(node.layer_name, {})[_NOTES[node.node_type]] = None
    regions = [
        *(
            ("vanishing" if one.extent.ongoing else "vanished before", one.affected_layers)
            for one in flow.vanishing_regions
        ),
        *(
            ("exploding" if one.extent.ongoing else "exploded before", one.affected_layers)
            for one in flow.exploding_regions
        ),
        *(("dead" if zone.ongoing else "dead before", zone.affected_layers) for zone in flow.dead_zones),
        ("not finite", [layer.layer_name for layer in flow.nonfinite_layers]),
    ]
    for word, layers in regions:
        for layer in layers:
            norms = flow.layer_flows[layer].gradient_magnitudes if layer in flow.layer_flows else ()
            if word != "exploding" or not norms or norms[-1] != 0:
                for name in (layer, layer.rpartition(".")[0]):
                    found.setdefault(name, {})[word] = None
    return {name: list(words) for name, words in found.items()}


def _links(groups: list[list[str]], flow: GradientFlowVisualization, home: dict[str, str]) -> tuple[FlowLink, ...]:
    """Of several links between two rows the largest gain and share."""
    place = {name: number for number, group in enumerate(groups) for name in group}
    found: dict[tuple[int, int], tuple[float | None, float | None]] = {}
    passing = {node.layer_name: node.flow_share for node in flow.flow_network.nodes}
    for edge in flow.flow_network.edges:
        ends = [place.get(home.get(layer, layer)) for layer in (edge.from_layer, edge.to_layer)]
        if ends[0] is None or ends[1] is None or ends[0] == ends[1]:
            continue
        gain, share = found.get((ends[0], ends[1]), (None, None))
        here, part = passing.get(edge.from_layer), edge.flow_share
        carried = None if here is None or part is None else here * part
        found[ends[0], ends[1]] = _larger(gain, edge.flow_strength), _larger(share, carried)
    return tuple(FlowLink(start, end, *numbers) for (start, end), numbers in found.items())


def _larger(first: float | None, second: float | None) -> float | None:
    return second if first is None else first if second is None else max(first, second, key=abs)


def _combined(whole: Grid, rows: tuple[FlowRow, ...], counts: list[int]) -> Grid:
    """Norms of parts of a vector add up by squares; of marks the worst one counts."""
    cells = np.full((len(rows), whole.columns), Cell.NOT_SAMPLED, np.int8)
    values = np.full(cells.shape, np.nan, np.float32)
    end = 0
    for number, count in enumerate(counts):
        start, end = end, end + count
        if count:
            cells[number] = whole.cells[start:end].max(0)
            values[number] = _norm(whole.values[start:end])
    values[cells != Cell.VALUE] = np.nan
    names = tuple(row.name for row in rows)
    return Grid(whole.quantity, names, whole.first, whole.width, values, cells, whole.scale)


def _norm(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of each column, by way of its largest number: squares of large ones would not be finite."""
    sizes = np.nan_to_num(values, nan=0.0)
    largest = sizes.max(0)
    scaled = sizes / np.where(largest > 0, largest, 1)
    return largest * np.sqrt((scaled**2).sum(0))
