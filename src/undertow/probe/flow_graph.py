"""Where the gradient of a loss parts: values that several operations use, told by the modules on either side.

Operations are labelled with the module whose parameters they use, or, where branches of several modules meet, with a
name made of these; everything else carries the label of what it was made of. Nothing here refers to the graph itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.probe.autograd_graph import Node, Owners, operation_of, user_of
from undertow.schema.graph import LOSS

_PARTING = (
    "Split",
    "SplitWithSizes",
    "UnsafeSplit",
    "Chunk",
    "Unbind",
)  # whose results are parts of what they were given
Gram = NDArray[np.float64]  # scalar products of what the uses of a value send back
Shares = dict[str, tuple[float, float]]  # by label: share, and size beside the whole
_WHOLE = (1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Fork:
    """A result of an operation, and who uses it: operation and place among its inputs. No uses: all results of one
    operation that hands out parts."""

    operation: int
    result: int
    uses: tuple[tuple[int, int], ...]
    elements: int


@dataclass(slots=True)
class FlowGraph:
    labels: list[str | None] = field(default_factory=list[str | None])  # of each operation
    begins: list[bool] = field(default_factory=list[bool])  # whether its label is its own
    uses: dict[int, dict[int, list[tuple[int, int]]]] = field(default_factory=dict[int, dict[int, Any]])
    roots: frozenset[int] = frozenset()
    targets: dict[int, frozenset[str]] = field(default_factory=dict[int, frozenset[str]])
    members: dict[str, list[int]] = field(default_factory=dict[str, list[int]])  # operations of each label, in order
    forks: dict[str, list[Fork]] = field(default_factory=dict[str, list[Fork]])  # to be measured, where any are
    unknown: set[str] = field(default_factory=set[str])  # labels where nobody can tell

    def starts(self, label: str) -> list[int]:
        return [one for one in self.members[label] if self.begins[one]]

    def leaving(self, label: str) -> list[str]:
        """Who else uses it: how much goes round in a module that feeds itself matters only beside several others."""
        return sorted(frozenset[str]().union(*(self.targets[one] for one in self.starts(label))) - {label})

    @property
    def pairs(self) -> Iterator[tuple[str, str]]:
        """Who is used by whom; by itself only where that is measured."""
        for label in self.members:
            yield from ((label, to) for to in self.leaving(label))
            if label in self.forks and any(label in self.targets[one] for one in self.starts(label)):
                yield label, label

    def shares(self, label: str, grams: Mapping[tuple[int, int], Gram]) -> Shares:
        """What each user of this label sends back of the gradient there."""
        if label not in self.forks:
            return dict.fromkeys(self.leaving(label), _WHOLE)
        found: dict[int, Shares] = {}
        for one in reversed(self.members[label]):
            found[one] = self._shares_at(one, grams, found)
        starts = self.starts(label)
        if len(starts) == 1:
            return found[starts[0]]
        energies = np.array([_energy(grams.get((one, 0))) for one in starts])
        weights = energies / energies.sum() if energies.sum() > 0 else np.full(len(starts), np.nan)
        shares: Shares = {}
        for to in dict.fromkeys(to for one in starts for to in found[one]):
            each = np.array([found[one].get(to, (0.0, 0.0)) for one in starts])
            shares[to] = float(weights @ each[:, 0]), float(np.sqrt(weights @ each[:, 1] ** 2))
        return shares

    def _shares_at(self, operation: int, grams: Mapping[tuple[int, int], Gram], found: dict[int, Shares]) -> Shares:
        targets = self.targets[operation]
        if len(targets) == 1:
            return dict.fromkeys(targets, _WHOLE)
        results = self.uses[operation]
        whole = [self._shares_of(operation, result, grams, found) for result in results]
        if len(whole) == 1:
            return whole[0]
        gram = grams.get((operation, -1))
        return _added(whole, gram if gram is None else gram[np.ix_(list(results), list(results))])

    def _shares_of(
        self, operation: int, result: int, grams: Mapping[tuple[int, int], Gram], found: dict[int, Shares]
    ) -> Shares:
        uses = self.uses[operation][result]
        whole = [{str(self.labels[by]): _WHOLE} if self.begins[by] else found[by] for by, _ in uses]
        if len(whole) == 1 or len({to for one in whole for to in one}) == 1:
            return dict.fromkeys(whole[0], _WHOLE) if len(whole) > 1 else whole[0]
        return _added(whole, grams.get((operation, result)))


def _energy(gram: Gram | None) -> float:
    return float("nan") if gram is None else float(gram.sum())


def _added(parts: Sequence[Shares], gram: Gram | None) -> Shares:
    """Of contributions that add up, each shared among its own targets."""
    targets = dict.fromkeys(to for part in parts for to in part)
    if gram is None or not np.isfinite(gram).all() or not (whole := float(gram.sum())) > 0:
        return dict.fromkeys(targets, (float("nan"), float("nan")))
    projected = gram.sum(axis=1) / whole
    shares: Shares = {}
    for to in targets:
        share, size = np.array([part.get(to, (0.0, 0.0)) for part in parts]).T
        shares[to] = float(projected @ share), float(np.sqrt(max(0.0, size @ gram @ size) / whole))
    return shares


def flow_graph(
    nodes: Sequence[Node], direct: Mapping[Node, list[int]], owners: Owners, roots: Sequence[Node]
) -> FlowGraph | None:
    """`nodes` in the order they ran; None where that order is not known."""
    graph = FlowGraph()
    place = {node: number for number, node in enumerate(nodes)}
    for number, node in enumerate(nodes):
        sources: dict[str, None] = {}
        for at, (before, result) in enumerate(node.next_functions):
            up = place.get(before)
            if up is not None and up >= number:
                return None
            if up is None or (label := graph.labels[up]) is None:
                continue
            sources[label] = None
            graph.uses.setdefault(up, {}).setdefault(result, []).append((number, at))
        own = node in direct or len(sources) > 1
        name = user_of(node, direct[node][-1], owners) if node in direct else next(iter(sources), None)
        if own and node not in direct:
            digest = blake2b("\n".join(sorted(sources)).encode(), digest_size=6)
            name = f"+{operation_of(node)} {digest.hexdigest()}"
        graph.labels.append(name)
        graph.begins.append(own)
        if name is not None:
            graph.members.setdefault(name, []).append(number)
    graph.roots = frozenset(place[root] for root in roots if root in place)
    _find_forks(graph, nodes)
    return graph


def _find_forks(graph: FlowGraph, nodes: Sequence[Node]) -> None:
    for number in range(len(nodes) - 1, -1, -1):
        label = graph.labels[number]
        if label is None:
            continue
        results = graph.uses.get(number, {})
        reached: list[frozenset[str]] = []
        for result, uses in results.items():
            one = frozenset[str]().union(*(_reached(graph, by) for by, _ in uses))
            reached.append(one)
            if len(uses) > 1 and len(one) > 1:
                _add(graph, label, Fork(number, result, tuple(uses), _elements(nodes[number], result)))
        every = frozenset[str]().union(*reached)
        if len(results) > 1 and len(every) > 1:
            if operation_of(nodes[number]) in _PARTING:
                size = sum(_elements(nodes[number], result) for result in results)
                _add(graph, label, Fork(number, -1, (), size))
            else:
                graph.unknown.add(label)
        if number in graph.roots and results:  # a gradient comes from outside as well
            graph.unknown.add(label)
            every |= {LOSS}
        graph.targets[number] = every or frozenset((LOSS,))
    for label in graph.members:
        if len(graph.leaving(label)) < 2:  # it gets all there is
            graph.forks.pop(label, None)
            graph.unknown.discard(label)
        elif len(starts := graph.starts(label)) > 1:
            _weigh(graph, label, starts, nodes)


def _weigh(graph: FlowGraph, label: str, starts: Sequence[int], nodes: Sequence[Node]) -> None:
    """A module that ran several times: how much each time counts."""
    known = {(fork.operation, fork.result) for fork in graph.forks.get(label, ())}
    for one in starts:
        results = graph.uses.get(one, {})
        if list(results) != [0]:
            graph.unknown.add(label)
        elif (one, 0) not in known:
            _add(graph, label, Fork(one, 0, tuple(results[0]), _elements(nodes[one], 0)))


def _reached(graph: FlowGraph, operation: int) -> frozenset[str]:
    return frozenset((str(graph.labels[operation]),)) if graph.begins[operation] else graph.targets[operation]


def _add(graph: FlowGraph, label: str, fork: Fork) -> None:
    graph.forks.setdefault(label, []).append(fork)


def _elements(node: Node, result: int) -> int:
    try:
        return prod(int(size) for size in node._input_metadata[result].shape)
    except (RuntimeError, AttributeError, IndexError, TypeError):
        return 0


@dataclass(slots=True)
class FlowReading:
    """Enough to compute shares away from the training thread."""

    graph: FlowGraph
    measured: list[str]  # labels
    pairs: list[tuple[str, str]]
    ids: NDArray[np.int32]  # of these
    grams: dict[tuple[int, int], Any] = field(default_factory=dict[tuple[int, int], Any])

    def values(self) -> NDArray[np.float32]:
        """Shares, then sizes, of all pairs; NaN where this step did not look."""
        grams: dict[tuple[int, int], Gram] = {key: one.cpu().numpy() for key, one in self.grams.items()}
        known = {label for label in self.graph.members if label not in self.graph.forks} | set(self.measured)
        known -= self.graph.unknown
        shares = {label: self.graph.shares(label, grams) for label in known}
        nothing = (np.nan, np.nan)
        found = [shares[start].get(end, nothing) if start in known else nothing for start, end in self.pairs]
        return np.ascontiguousarray(np.array(found, np.float32).reshape(-1, 2).T)
