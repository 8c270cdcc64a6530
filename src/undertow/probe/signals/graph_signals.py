"""Signals that need the whole graph of a loss: attention and gates, given to the modules they belong to."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]

from undertow.probe.autograd_graph import nodes_of
from undertow.probe.forward import ModuleReading
from undertow.probe.signals.attention import BUILT_IN, read_attention
from undertow.probe.signals.attention_contract import normalised_elsewhere, seen_keys, sees_next_token
from undertow.probe.signals.expert_router import find_gates
from undertow.probe.signals.functions import dropped_share, note_functions
from undertow.probe.signals.graph_values import Value
from undertow.probe.signals.kl_divergence import read_latent
from undertow.probe.signals.likelihood import lowers_likelihood
from undertow.probe.signals.reward import rewards
from undertow.probe.signals.terms import Term, find_terms
from undertow.probe.signals.tokens import (
    Lookup,
    find_lookups,
    is_one_of_many,
    is_predicted,
    next_tokens,
    padding_inside,
    sees_one_token,
    targets_are_inputs,
)
from undertow.probe.signals.unbounded_loss import is_unbounded
from undertow.schema import AttentionState, Floor

_MOST_FOUND = 256  # attentions, dropouts
_EMPTY_GRAPHS = 2  # after which a model is taken to have neither
_PARTS = (nn.Softmax, nn.Dropout, nn.Identity)  # what is computed in these belongs to the module around them


class GraphSignals:
    def __init__(self) -> None:
        self._empty_graphs = 0

    @property
    def is_empty(self) -> bool:
        return self._empty_graphs >= _EMPTY_GRAPHS

    def read(self, roots: Sequence[Any], modules: Iterable[ModuleReading]) -> dict[str, float]:
        """Gives modules what belongs to them; the rest are numbers of the whole step."""
        if self.is_empty:
            return {}
        with torch.no_grad():
            graph = _Graph(roots, list(modules))
            found = graph.note_attention() + graph.note_gates() + graph.note_dropouts() + len(graph.lookups)
            found += note_functions(graph.named, graph.modules)
            graph.note_padding()
            facts: dict[str, float | None] = {"targets_are_inputs": targets_are_inputs(graph.lookups, graph.terms)}
            if len(roots) == 1:
                found += graph.note_latent(roots[0])
                facts["loss_without_floor"] = rewards(roots[0]) or is_unbounded(roots[0], graph.named)
                if lowers_likelihood(roots[0]):
                    facts["loss_without_floor"] = Floor.LOWERS_LIKELIHOOD
        self._empty_graphs = 0 if found else self._empty_graphs + 1
        return {name: float(fact) for name, fact in facts.items() if fact is not None}


class _Graph:
    """One graph, and the modules that ran. What notes something says how often it was found."""

    def __init__(self, roots: Sequence[Any], modules: list[ModuleReading]) -> None:
        self.named = [(value.operation, value) for value in map(Value, nodes_of(roots))]
        self.modules = modules
        self.lookups: list[Lookup] = find_lookups(self.named)
        self.terms: list[Term] = [term for root in roots for term in find_terms(root)[0]] if self.lookups else []
        # How many operations a call ran, the first, the one behind the last, the module; the innermost calls first.
        places = [(last - first, first, last, one) for one in modules for first, last in one.spans]
        self._places = sorted(
            (place for place in places if not issubclass(place[3].kind, _PARTS)), key=lambda place: place[0]
        )

    def _owner(self, value: Value) -> ModuleReading | None:
        """The innermost module that ran this operation; where that is a whole model, the part that ran before."""
        number = value.node._sequence_nr()
        around = [place for place in self._places if place[1] <= number < place[2]]
        if len(around) != 1:
            return around[0][3] if around else None
        _, first, _, whole = around[0]
        before = [place for place in self._places if first <= place[1] and place[2] <= number]
        return max(before, key=lambda place: place[2])[3] if before else whole

    def note_attention(self) -> int:
        for name, value in self.named:
            elsewhere = normalised_elsewhere(value) if name == "Bmm" else None
            owner = self._owner(elsewhere[0]) if elsewhere is not None else None
            if elsewhere is not None and owner is not None:
                _note_state(owner, AttentionState.NORMALISED_ELSEWHERE if elsewhere[1] else AttentionState.FINE)
        asked = next_tokens(self.lookups, self.terms)
        found = 0
        for name, value in self.named:
            may_be = name.endswith("Softmax") or name.startswith(BUILT_IN)
            owner = self._owner(value) if may_be and found < _MOST_FOUND else None
            if owner is None:
                continue
            seen = seen_keys(value) if self.lookups else None
            if seen is not None and sees_one_token(seen, self.lookups):
                _note_state(owner, AttentionState.SEES_PADDING)
            if asked is not None and sees_next_token(value, asked):
                _note_state(owner, AttentionState.SEES_ANSWERS)
            attention = read_attention(value)
            if attention is not None:
                found += 1
                _note_state(owner, AttentionState.UNSCALED if attention.unscaled else AttentionState.FINE)
                if attention.logit_max is not None:
                    owner.attention_logits.append(attention.logit_max)
                if attention.entropy is not None:
                    owner.attention_entropies.append(attention.entropy)
        return found

    def note_gates(self) -> int:
        found = 0
        for gate in find_gates(self.named):
            owner = self._owner(gate.linear)
            if owner is not None:
                found += 1
                owner.router_loads.append(gate.load_max)
                owner.router_outputs = gate.outputs
        return found

    def note_dropouts(self) -> int:
        """Those that have no module of their own."""
        found = 0
        own = [span for one in self.modules if issubclass(one.kind, _DropoutNd) for span in one.spans]
        for name, value in self.named:
            rate = dropped_share(name, value) if found < _MOST_FOUND else None
            if rate is None or any(first <= value.node._sequence_nr() < last for first, last in own):
                continue
            owner = self._owner(value)
            if owner is not None:
                found += 1
                owner.dropped = max(rate, owner.dropped or 0.0)
        return found

    def note_padding(self) -> None:
        for lookup in self.lookups:
            owner, inside = self._owner(lookup.value), padding_inside(lookup)
            if owner is not None and inside is not None:
                asked = is_predicted(lookup, self.terms)
                is_token = asked or is_one_of_many(lookup, may_be_common=asked is None)
                owner.padding_inside = inside if is_token else 0.0

    def note_latent(self, root: Any) -> int:
        latent = read_latent(root)
        owner = self._owner(latent.source) if latent is not None else None
        if latent is None or owner is None:
            return 0
        owner.latent_nats = latent.nats
        return 1


def _note_state(owner: ModuleReading, state: float) -> None:
    owner.attention_state = max(state, owner.attention_state or AttentionState.FINE)
