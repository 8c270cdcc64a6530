"""Execution order and connectivity, read from the autograd graph of a loss just before it is used.

Operations that use a parameter are labelled with the module that owns it. Everything between them is folded
away, except places where branches meet (residual additions, concatenations): those stay as merge nodes, so the
number of edges grows with the model and not with its square.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from undertow.measure.kernels.tensors import is_freed
from undertow.probe.distributed.fsdp import POST_BACKWARD
from undertow.probe.distributed.portions import is_spread
from undertow.schema import GraphNode, GraphSource, LayerGraph

MAX_NODES = 200_000

# Operations that only reshape or cast a parameter on its way to where it is used.
_RESHAPING = (
    "TBackward", "TransposeBackward", "PermuteBackward", "ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward",
    "ToCopyBackward", "CloneBackward", "ExpandBackward", "AliasBackward", "SliceBackward", "SelectBackward",
    "SplitBackward", "SplitWithSizesBackward", "ChunkBackward", "UnsqueezeBackward", "SqueezeBackward",
    "AsStridedBackward", "WeightNormInterfaceBackward", "UnbindBackward",
)  # fmt: skip

Node = Any  # torch.autograd.graph.Node; its methods are not typed


@dataclass(frozen=True, slots=True)
class Owner:
    """A module that holds a parameter; tied parameters have several."""

    path: str
    is_embedding: bool = False


# id of each watched parameter → the modules that hold it, in registration order
Owners = Mapping[int, tuple[Owner, ...]]
# id of a tensor that autograd sees → id of the watched parameter it stands for, or of those it is split into
Gathered = Mapping[int, int | tuple[int | None, ...]]
_NONE: Gathered = {}


@dataclass(slots=True)
class Walk:
    """What one walk over a loss's graph found."""

    order: list[int] = field(default_factory=list[int])  # ids of parameters, by first use
    position: dict[int, int] = field(default_factory=dict[int, int])  # id of parameter → sequence number of first use
    graph: LayerGraph = field(default_factory=LayerGraph)
    complete: bool = True


def walk(roots: Iterable[torch.Tensor], owners: Owners, gathered: Gathered = _NONE) -> Walk:
    nodes, complete = collect(roots)
    if not nodes:
        return Walk(complete=complete)
    compiled = any(_is_compiled(node) for node in nodes)
    direct = direct_parameters(nodes, owners, gathered)
    registered = {parameter: index for index, parameter in enumerate(owners)}
    position: dict[int, int] = {}
    rank: dict[int, tuple[int, int]] = {}
    for index, node in enumerate(nodes):
        # A compiled model is one operation that lists its parameters by first use; elsewhere the parameters of
        # one operation (weight, bias) stand in the order the module has them.
        listed = _is_compiled(node)
        for place, parameter in enumerate(direct.get(node, ())):
            key = (index, place if listed else registered[parameter])
            if parameter not in rank:
                rank[parameter] = key
                position[parameter] = node._sequence_nr()
    order = sorted(rank, key=lambda parameter: rank[parameter])
    graph = _chain(order, owners) if compiled else _contract(nodes, direct, owners)
    return Walk(order, position, graph, complete)


def collect(roots: Iterable[torch.Tensor]) -> tuple[list[Node], bool]:
    """All nodes but the leaves, in the order they ran forward."""
    stack: list[Node] = [root.grad_fn for root in roots if isinstance(root, torch.Tensor) and root.grad_fn is not None]
    seen: set[Node] = set(stack)
    while stack:
        node = stack.pop()
        for upstream, _ in node.next_functions:
            if upstream is not None and upstream not in seen and not hasattr(upstream, "variable"):
                seen.add(upstream)
                stack.append(upstream)
        if len(seen) > MAX_NODES:
            return [], False
    return sorted(seen, key=lambda node: node._sequence_nr()), True


def nodes_of(roots: Iterable[torch.Tensor]) -> list[Node]:
    """All operations that led to these roots, in the order they ran; none when there are too many."""
    return collect(roots)[0]


def leaf_tensors(roots: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors whose gradients a backward pass from these roots would reach, by first use."""
    nodes, _ = collect(roots)
    ends = (up for node in nodes for up, _ in node.next_functions if up is not None and hasattr(up, "variable"))
    return list({id(up.variable): up.variable for up in ends}.values())


def leaves(roots: Iterable[torch.Tensor]) -> set[int]:
    """Ids of those."""
    return {id(tensor) for tensor in leaf_tensors(roots)}


def _is_compiled(node: Node) -> bool:
    return node.name().startswith("CompiledFunction")


def direct_parameters(nodes: list[Node], owners: Owners, gathered: Gathered) -> dict[Node, list[int]]:
    """For each operation the watched parameters that reach it through reshaping operations only.

    The reshaping operations themselves are left out: the operation that uses the parameter stands for it.
    """
    passed_on: dict[Node, list[int]] = {}
    direct: dict[Node, list[int]] = {}
    split: dict[Node, tuple[int | None, ...]] = {}  # operations that cut a flat tensor into parameters
    for node in nodes:
        found: list[int] = []
        mixes = False
        for upstream, place in node.next_functions:
            if upstream is None:
                continue
            if hasattr(upstream, "variable"):
                parameter = id(upstream.variable)
                parameter = gathered.get(parameter, parameter)
                if isinstance(parameter, tuple):
                    if node.name().startswith("Split"):
                        split[node] = parameter
                elif parameter in owners:
                    found.append(parameter)
            elif upstream in split:
                parameter = split[upstream][place]
                if parameter in owners:
                    found.append(parameter)
            elif upstream in passed_on:
                found.extend(passed_on[upstream])
            else:
                mixes = True
        if found and not mixes and node.name().startswith(_RESHAPING):
            passed_on[node] = found
        elif found:
            direct[node] = found
    return direct


def _chain(order: list[int], owners: Owners) -> LayerGraph:
    """A compiled model shows one operation: its parameters in call order are all there is to see."""
    paths = list(dict.fromkeys(owners[parameter][0].path for parameter in order))
    nodes = tuple(GraphNode(i, path) for i, path in enumerate(paths))
    return LayerGraph(nodes, tuple((i, i + 1) for i in range(len(nodes) - 1)), GraphSource.CALL_ORDER)


def _contract(nodes: list[Node], direct: Mapping[Node, list[int]], owners: Owners) -> LayerGraph:
    graph_nodes: list[GraphNode] = []
    by_path: dict[str, int] = {}
    edges: dict[tuple[int, int], None] = {}
    source_of: dict[Node, int | None] = {}  # the graph node whose data an operation's output carries

    def add(path: str, operation: str, is_merge: bool) -> int:
        graph_nodes.append(GraphNode(len(graph_nodes), path, operation, is_merge))
        return len(graph_nodes) - 1

    for node in nodes:
        if _passes_through(node):
            continue
        sources = dict.fromkeys(source for upstream in _before(node) if (source := source_of.get(upstream)) is not None)
        if node in direct:
            path = user_of(node, direct[node][-1], owners)
            if path not in by_path:
                by_path[path] = add(path, operation_of(node), is_merge=False)
            here = by_path[path]
        elif len(sources) > 1:
            here = add("", operation_of(node), is_merge=True)
        else:
            source_of[node] = next(iter(sources), None)
            continue
        for source in sources:
            if source < here:  # a module used again (recurrence, sharing) would close a cycle
                edges[(source, here)] = None
        source_of[node] = here
    return LayerGraph(tuple(graph_nodes), tuple(edges), GraphSource.AUTOGRAD)


def _before(node: Node) -> Iterable[Node]:
    """The operations whose results this one is given."""
    for upstream, place in node.next_functions:
        while upstream is not None and _passes_through(upstream):
            upstream, place = upstream.next_functions[place]
        if upstream is not None:
            yield upstream


def _passes_through(node: Node) -> bool:
    """Many tensors in, the same ones out: nothing meets there."""
    return node.name().startswith(POST_BACKWARD)


def user_of(node: Node, parameter: int, owners: Owners) -> str:
    """Of the modules that share a tied parameter, the one this operation belongs to."""
    candidates = owners[parameter]
    looks_up = node.name().startswith("Embedding")
    return next((owner.path for owner in candidates if owner.is_embedding == looks_up), candidates[0].path)


def operation_of(node: Node) -> str:
    return node.name().removeprefix("torch::autograd::").rstrip("0123456789").removesuffix("Backward")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the first non-finite value of a forward pass was seen."""

    operation: str
    path: str  # the module whose operation it is, or the nearest one before it
    detail: str


def first_nonfinite(roots: Iterable[torch.Tensor], owners: Owners, gathered: Gathered = _NONE) -> Origin | None:
    """The earliest operation of this loss whose saved values are not finite.

    Called once, when a loss has turned non-finite; reads what autograd saved for the backward pass.
    """
    nodes, complete = collect(roots)
    if not complete:
        return None
    direct = direct_parameters(nodes, owners, gathered)
    source_of: dict[Node, str] = {}
    for node in nodes:
        upstream_paths = [source_of[up] for up, _ in node.next_functions if up is not None and up in source_of]
        path = (
            user_of(node, direct[node][-1], owners)
            if node in direct
            else (upstream_paths[-1] if upstream_paths else "")
        )
        if path:
            source_of[node] = path
        bad = _first_bad_saved(node)
        if bad is not None:
            # What comes in non-finite was made before: most results are seen only where they are used.
            received = bad.name in _RECEIVED and bool(upstream_paths) and not bad.outside
            received = received and not _overflows_in_cast(node, bad.name)
            return Origin(operation_of(node), upstream_paths[-1] if received else path, bad.detail)
    return None


class _Bad(NamedTuple):
    name: str
    detail: str
    outside: bool = False  # finite, but what the operation makes of it is not


_RECEIVED = ("self", "input", "mat1")


def _overflows_in_cast(node: Node, operand: str) -> bool:
    """Whether this operand was cast to float16 for the operation: then it left the range here, not before."""
    value = _quietly(lambda: getattr(node, f"_saved_{operand}"))
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float16 or bool(value.isnan().any()):
        return False
    place = 1 if operand == "mat1" else 0
    up: Node | None = node.next_functions[place][0]
    while up is not None and operation_of(up) in ("View", "UnsafeView", "ReshapeAlias"):
        up = up.next_functions[0][0]
    return up is not None and operation_of(up) == "ToCopy"


def _first_bad_saved(node: Node) -> _Bad | None:
    for name in dir(type(node)):
        if not name.startswith("_saved_"):
            continue
        value = _quietly(lambda name=name: getattr(node, name))
        if is_spread(value):
            continue  # an operation on it could call for the other ranks
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.device.type != "meta":
            if is_freed(value):
                continue
            value, what = value.detach(), name.removeprefix("_saved_")
            bad = int(value.numel() - torch.isfinite(value).sum().item())
            if bad:
                return _Bad(what, f"{bad} of {value.numel()} values of '{what}' are not finite")
            outside = _OUTSIDE.get((operation_of(node), what))
            if outside is not None and (count := int(outside[0](value).sum().item())):
                return _Bad(what, f"{count} of {value.numel()} values of '{what}' are {outside[1]}", outside=True)
    return None


# Operations that turn finite values into non-finite ones without saving the result.
_OUTSIDE: dict[tuple[str, str], tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    ("Log", "self"): (lambda x: x <= 0, "zero or negative"),
    ("Log2", "self"): (lambda x: x <= 0, "zero or negative"),
    ("Log10", "self"): (lambda x: x <= 0, "zero or negative"),
    ("Log1P", "self"): (lambda x: x <= -1, "-1 or less"),
    ("Div", "other"): (lambda x: x == 0, "zero"),
}


def _quietly(read: Callable[[], Any]) -> Any:
    """Saved values may be freed already, or belong to an operation that refuses to show them."""
    try:
        return read()
    except (RuntimeError, AttributeError):
        return None
