"""The executed model as a graph of layers: who feeds whom."""

from dataclasses import dataclass
from enum import StrEnum

LOSS = ""  # in the place of a module: what follows leads to the loss past all others


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
    """Edges point the way data flows forward. Nodes are in execution order.

    `connections` are what shares of gradient were measured along, by name: modules, places where branches meet (their
    names begin with `+`) and the loss. The stream `flow` speaks of them by their place in this list.
    """

    nodes: tuple[GraphNode, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()
    source: GraphSource = GraphSource.NONE
    connections: tuple[tuple[str, str], ...] = ()
    unmeasured: str = ""  # why there are none, or no more
