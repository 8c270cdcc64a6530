"""What each user of a value sends back of its gradient, in some steps, from hooks on operations of the loss's graph.

A value's gradient is the sum of what its users send back. As much of each as fits is copied when it passes by; once all
have come, only their scalar products are left. Hooks are gone when the backward pass is over. Nothing is attached
to a module, and no gradient of the training is kept, changed or used in its place.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from undertow.measure.kernels.tensors import is_freed
from undertow.probe.autograd_graph import Node, collect, direct_parameters
from undertow.probe.flow_graph import FlowGraph, FlowReading, Fork, flow_graph
from undertow.probe.signals.modules import is_wrapped
from undertow.probe.unseen import is_traced, unseen
from undertow.probe.watched_layers import WatchedLayers

MAX_ELEMENTS = 1 << 20  # of one value; of larger ones the first samples are read
_MAX_AT_ONCE = 1 << 22  # copied in one step: what is more has its turn in a later one
_MAX_CONNECTIONS = 20_000


class FlowShares:
    def __init__(self, layers: WatchedLayers) -> None:
        self._layers = layers
        self._handles: list[Any] = []
        self._reading: FlowReading | None = None
        self._turn = 0  # labels that have had theirs in this round
        self._seconds = 0.0
        self._told = ""
        self.announce: Callable[[], None] = lambda: None  # there are new connections
        self.finds_forks = False

    def begin(self, roots: Sequence[Any]) -> None:
        """As a backward pass begins."""
        self.end()
        self._reading = None
        layers = self._layers
        if layers.flow_unmeasured:
            return
        why = _unfit(layers)
        plain = [root for root in roots if isinstance(root, torch.Tensor) and root.grad_fn is not None]
        nodes, complete = collect(plain)
        if not why and (not complete or any(node.name().startswith("CompiledFunction") for node in nodes)):
            why = "the model is compiled" if complete else "the graph of the loss is too large"
        if not why and nodes:
            with torch.no_grad():
                why = self._hook(nodes, [root.grad_fn for root in plain])
        if why:
            self._give_up(why)

    def _hook(self, nodes: list[Node], roots: Sequence[Node]) -> str:
        """Returns why not, where something is in the way."""
        layers = self._layers
        graph = flow_graph(nodes, direct_parameters(nodes, layers.owners, {}), layers.owners, roots)
        if graph is None:
            return "operations of several threads have no common order"
        pairs = list(graph.pairs)
        ids, are_new = layers.connect(pairs)
        if max(ids, default=0) >= _MAX_CONNECTIONS:
            return "the graph is another one in every step"
        if are_new:
            self.announce()
        self.finds_forks = self.finds_forks or bool(graph.forks)
        reading = FlowReading(graph, self._choose(graph), pairs, ids)
        self._reading = reading
        wanted: dict[int, list[tuple[int, _Rows, int]]] = {}
        for label in reading.measured:
            for fork in graph.forks[label]:
                if fork.uses:
                    rows = _Rows(reading, fork)
                    for row, (by, place) in enumerate(fork.uses):
                        wanted.setdefault(by, []).append((place, rows, row))
                else:
                    self._handles.append(nodes[fork.operation].register_prehook(self._guarded(_parts(reading, fork))))
        for operation, places in wanted.items():
            self._handles.append(nodes[operation].register_hook(self._guarded(_sent(places))))
        return ""

    def _choose(self, graph: FlowGraph) -> list[str]:
        """Whose turn it is: all of them, unless there is too much to copy."""
        labels = [label for label in graph.forks if label not in graph.unknown]
        self._turn = self._turn if self._turn < len(labels) else 0
        chosen, left = list[str](), _MAX_AT_ONCE
        for label in [*labels[self._turn :], *labels[: self._turn]]:
            forks = graph.forks[label]
            left -= sum(max(1, len(fork.uses)) * min(fork.elements, MAX_ELEMENTS) for fork in forks)
            if chosen and left < 0:
                break
            chosen.append(label)
        self._turn += len(chosen)
        return chosen

    def end(self) -> float:
        """The backward pass is over, or has failed; returns the seconds that hooks took in it."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        if self._layers.flow_unmeasured != self._told:
            self._told = self._layers.flow_unmeasured
            self.announce()
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def take(self) -> FlowReading | None:
        reading, self._reading = self._reading, None
        return reading

    def _give_up(self, why: str) -> None:
        """For good. Hooks of a backward pass that is under way stay until it is over."""
        self._layers.flow_unmeasured = why
        self._reading, self.finds_forks = None, False

    def _guarded(self, act: Callable[..., None]) -> Callable[..., None]:
        """Whatever fails ends here, and nobody sees what is done."""

        def hook(*given: Any) -> None:
            if self._reading is None or is_traced():
                return
            began = time.thread_time()
            try:
                if torch.is_grad_enabled():
                    self._give_up("the backward pass is itself to be differentiated")
                    return
                with unseen(), torch.no_grad():
                    act(*given)
            except Exception as error:
                self._give_up(f"reading the gradients between modules failed: {type(error).__name__}")
            finally:
                self._seconds += time.thread_time() - began

        return hook


def _sent(places: Sequence[tuple[int, "_Rows", int]]) -> Callable[..., None]:
    def receive(sent: Sequence[torch.Tensor | None], received: Any) -> None:
        for place, rows, row in places:
            rows.put(row, sent[place])

    return receive


def _parts(reading: FlowReading, fork: Fork) -> Callable[..., None]:
    """Of an operation that hands out parts: they have nothing in common, so that the size of each is its share."""

    def receive(received: Sequence[torch.Tensor | None]) -> None:
        squares = [None if one is None else _few(one).square().sum() for one in received]
        nothing = torch.zeros((), dtype=torch.float64, device=next(one.device for one in squares if one is not None))
        reading.grams[fork.operation, -1] = torch.stack([nothing if one is None else one for one in squares]).diag()

    return receive


class _Rows:
    """What the users of one value send back, side by side until all of them have."""

    __slots__ = ("_fork", "_left", "_reading", "_rows")

    def __init__(self, reading: FlowReading, fork: Fork) -> None:
        self._reading, self._fork, self._left = reading, fork, len(fork.uses)
        self._rows: torch.Tensor | None = None

    def put(self, row: int, gradient: torch.Tensor | None) -> None:
        self._left -= 1
        if gradient is not None:  # else nothing comes back this way
            values = _few(gradient)
            if self._rows is None:
                self._rows = values.new_zeros(len(self._fork.uses), len(values))
            self._rows[row] = values
        if not self._left and self._rows is not None:
            self._reading.grams[self._fork.operation, self._fork.result] = self._rows @ self._rows.T
            self._rows = None


def _few(gradient: torch.Tensor) -> torch.Tensor:
    """In double precision, since products of small numbers would be none; of a large one its first samples."""
    if type(gradient) is not torch.Tensor or is_wrapped(gradient) or is_freed(gradient):
        raise TypeError("no plain tensor")
    values = gradient.detach()
    if values.numel() > MAX_ELEMENTS and values.dim() and len(values) > 1:
        values = values[: max(1, MAX_ELEMENTS * len(values) // values.numel())]
    values = torch.view_as_real(values) if values.is_complex() else values
    precision = torch.float32 if values.device.type == "mps" else torch.float64
    return values.reshape(-1)[:MAX_ELEMENTS].to(precision)


def _unfit(layers: WatchedLayers) -> str:
    if layers.layout.spread is not None or (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return "the training runs on several ranks"
    compiler = getattr(sys.modules.get("torch._dynamo"), "compiled_autograd", None)
    if getattr(compiler, "compiled_autograd_enabled", False):
        return "backward passes are compiled"
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return "the step is captured as a CUDA graph"
    return ""
