"""Who feeds whom, among the layers that were measured."""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from undertow.schema import LayerGraph
from undertow.schema.seeds.arrays import InputError


@dataclass(frozen=True)
class Topology:
    """Edges (from, to) point the way data flows, between indices of `names`; both in order of execution."""

    names: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    order: tuple[int, ...]  # indices of names, first executed first

    @cached_property
    def position(self) -> dict[int, int]:
        return {node: place for place, node in enumerate(self.order)}

    @cached_property
    def feeds(self) -> dict[int, list[int]]:
        return self._neighbours(0, 1)

    @cached_property
    def fed_by(self) -> dict[int, list[int]]:
        return self._neighbours(1, 0)

    def _neighbours(self, here: int, there: int) -> dict[int, list[int]]:
        table: dict[int, list[int]] = {node: [] for node in range(len(self.names))}
        for edge in self.edges:
            table[edge[here]].append(edge[there])
        return table


def topology_of(graph: Any, names: Iterable[str]) -> Topology:
    """Read a graph in any of its forms and keep the measured layers; paths through others become direct edges.

    Forms: a `LayerGraph`, a mapping of each layer to those it feeds, pairs (from, to), or a networkx graph.
    """
    labels = tuple(names)
    nodes, pairs = _read(graph)
    known = {name: place for place, name in enumerate(labels)}
    if nodes and not any(node in known for node in nodes):
        raise InputError(
            f"the graph names no measured layer: it has {', '.join(map(str, nodes[:3]))} …, "
            f"the layers are {', '.join(labels[:3])} …"
        )
    after: dict[str, list[str]] = {}
    for start, end in pairs:
        after.setdefault(start, []).append(end)
    order, cycle = _sorted([*nodes, *(name for name in labels if name not in nodes)], after)
    edges: dict[tuple[int, int], None] = {}
    for start in order:
        if start in known:
            for end in _next_known(start, after, known, cycle):
                edges[known[start], known[end]] = None
    return Topology(labels, tuple(edges), tuple(known[node] for node in order if node in known))


def _read(graph: Any) -> tuple[list[str], list[tuple[str, str]]]:
    if isinstance(graph, LayerGraph):
        label = {node.id: node.path or f"merge {node.id}" for node in graph.nodes}
        return list(dict.fromkeys(label.values())), [(label[a], label[b]) for a, b in graph.edges]
    if isinstance(graph, Mapping):
        table = cast("Mapping[Any, Iterable[Any]]", graph)
        pairs = [(str(a), str(b)) for a, ends in table.items() for b in ([ends] if isinstance(ends, str) else ends)]
    elif hasattr(graph, "edges") and hasattr(graph, "nodes"):
        pairs = [(str(edge[0]), str(edge[1])) for edge in graph.edges]
        nodes = [str(node) for node in graph.nodes]
        return list(dict.fromkeys([*nodes, *(name for pair in pairs for name in pair)])), pairs
    else:
        try:
            pairs = [(str(start), str(end)) for start, end in graph]
        except (TypeError, ValueError):
            raise InputError(
                f"the graph is a {type(graph).__name__}",
                way_out="Give pairs (from, to), a mapping of each layer to those it feeds, or a networkx graph",
            ) from None
    return list(dict.fromkeys(name for pair in pairs for name in pair)), pairs


def _sorted(nodes: list[str], after: Mapping[str, list[str]]) -> tuple[list[str], set[tuple[str, str]]]:
    """Nodes so that edges point forward, earliest named first; edges that make that impossible are returned."""
    cut: set[tuple[str, str]] = set()
    waiting = dict.fromkeys(nodes, 0)
    for ends in after.values():
        for end in ends:
            waiting[end] = waiting.get(end, 0) + 1
    place = {node: position for position, node in enumerate(waiting)}
    ready = [position for node, position in place.items() if waiting[node] == 0]
    names = list(place)
    order: dict[str, None] = {}
    while len(order) < len(waiting):
        if not ready:  # a cycle: enter it at its earliest node
            first = next(node for node in waiting if node not in order)
            cut |= {(a, first) for a, ends in after.items() if first in ends and a not in order}
            ready.append(place[first])
        node = names[heapq.heappop(ready)]
        if node in order:
            continue
        order[node] = None
        for end in after.get(node, ()):
            waiting[end] -= 1
            if waiting[end] == 0 and end not in order:
                heapq.heappush(ready, place[end])
    return list(order), cut


def _next_known(
    start: str, after: Mapping[str, list[str]], known: Mapping[str, int], cut: set[tuple[str, str]]
) -> list[str]:
    found: dict[str, None] = {}
    seen: set[str] = set()
    frontier = [start]
    while frontier:
        node = frontier.pop()
        for end in after.get(node, ()):
            if (node, end) in cut or end in seen:
                continue
            seen.add(end)
            if end in known:
                found[end] = None
            else:
                frontier.append(end)
    return list(found)
