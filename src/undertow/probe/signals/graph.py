"""Signals that need the whole graph of a loss: attention and gates, given to the modules they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from undertow.probe.autograd_graph import nodes_of
from undertow.probe.signals.attention import read_attention
from undertow.probe.signals.nodes import Node, operation
from undertow.probe.signals.router import find_gates

_MOST_ATTENTIONS = 256
_EMPTY_LOOKS = 2  # after which a model is taken to have neither
_PARTS = (nn.Softmax, nn.Dropout, nn.Identity)  # what is computed in these belongs to the module around them


class Span(Protocol):
    """A module that ran: the numbers of the operations inside each of its calls, and room for what they show."""

    module: nn.Module
    spans: list[tuple[int, int]]
    attention_logits: list[float]
    attention_entropies: list[float]
    router_loads: list[float]
    router_outputs: int | None


class GraphSignals:
    def __init__(self) -> None:
        self._empty_looks = 0

    def read(self, roots: Sequence[Any], modules: Iterable[Span]) -> None:
        if self._empty_looks >= _EMPTY_LOOKS:
            return
        nodes = nodes_of(roots)
        places = sorted(
            ((last - first, first, last, one) for one in modules for first, last in one.spans),
            key=lambda place: place[0],
        )
        with torch.no_grad():
            found = self._attention(nodes, places) + self._gates(nodes, places)
        self._empty_looks = 0 if found else self._empty_looks + 1

    def _attention(self, nodes: Sequence[Node], places: list[tuple[int, int, int, Span]]) -> int:
        found = 0
        for node in nodes:
            name = operation(node)
            if not (name.startswith("ScaledDotProduct") or name.endswith("Softmax")) or found >= _MOST_ATTENTIONS:
                continue
            owner = _owner(node, places)
            attention = read_attention(node) if owner is not None else None
            if owner is not None and attention is not None:
                found += 1
                if attention.logit_max is not None:
                    owner.attention_logits.append(attention.logit_max)
                if attention.entropy is not None:
                    owner.attention_entropies.append(attention.entropy)
        return found

    def _gates(self, nodes: Sequence[Node], places: list[tuple[int, int, int, Span]]) -> int:
        found = 0
        for gate in find_gates(nodes):
            owner = _owner(gate.linear, places)
            if owner is not None:
                found += 1
                owner.router_loads.append(gate.load_max)
                owner.router_outputs = gate.outputs
        return found


def _owner(node: Node, places: list[tuple[int, int, int, Span]]) -> Span | None:
    """The innermost module that ran this operation."""
    number = node._sequence_nr()
    return next(
        (one for _, first, last, one in places if first <= number < last and not isinstance(one.module, _PARTS)), None
    )
