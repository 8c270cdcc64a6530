"""The executed model as a graph of layers: who feeds whom."""

from dataclasses import dataclass
from enum import StrEnum


class GraphSource(StrEnum):
    AUTOGRAD = "autograd"  # data flow, read from the graph of the loss
    CALL_ORDER = "call order"  # a chain in execution order: the model was compiled
    NONE = "none"


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A module that owns parameters, or a place where branches meet (`layer` is then empty)."""

    id: int
    path: str
    operation: str = ""  # name of the autograd operation; for merges, what joins the branches
    is_merge: bool = False


@dataclass(frozen=True, slots=True)
class LayerGraph:
    """Edges point the way data flows forward. Nodes are in execution order."""

    nodes: tuple[GraphNode, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()
    source: GraphSource = GraphSource.NONE
