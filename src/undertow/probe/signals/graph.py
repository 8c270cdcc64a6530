"""Signals that need the whole graph of a loss: attention and gates, given to the modules they belong to."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]

from undertow.probe.autograd_graph import nodes_of
from undertow.probe.signals.attention import read_attention
from undertow.probe.signals.attention_contract import normalised_elsewhere, seen_keys, sees_next_token
from undertow.probe.signals.expert_router import find_gates
from undertow.probe.signals.functions import Followed, dropped_share, note_functions
from undertow.probe.signals.kl_divergence import read_latent
from undertow.probe.signals.likelihood import lowers_likelihood
from undertow.probe.signals.nodes import Node, operation
from undertow.probe.signals.reward import rewards
from undertow.probe.signals.terms import Term, find_terms
from undertow.probe.signals.tokens import (
    Asked,
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

_MOST_ATTENTIONS = 256
_EMPTY_LOOKS = 2  # after which a model is taken to have neither
_PARTS = (nn.Softmax, nn.Dropout, nn.Identity)  # what is computed in these belongs to the module around them


class Span(Followed, Protocol):
    """A module that ran: the numbers of the operations inside each of its calls, and room for what they show."""

    attention_logits: list[float]
    attention_entropies: list[float]
    attention_state: float | None
    padding_inside: float | None
    dropped: float | None
    router_loads: list[float]
    router_outputs: int | None
    latent_nats: float | None


Place = tuple[int, int, int, Span]  # how many operations a call ran, the first, the one behind the last, the module


class GraphSignals:
    def __init__(self) -> None:
        self._empty_looks = 0

    def read(self, roots: Sequence[Any], modules: Iterable[Span]) -> dict[str, float]:
        """Gives modules what belongs to them; the rest are numbers of the whole step."""
        if self._empty_looks >= _EMPTY_LOOKS:
            return {}
        nodes, known = nodes_of(roots), list(modules)
        places = sorted(
            ((last - first, first, last, one) for one in known for first, last in one.spans),
            key=lambda place: place[0],
        )
        with torch.no_grad():
            lookups = find_lookups(nodes)
            terms = [term for root in roots for term in find_terms(root)] if lookups else []
            asked = next_tokens(lookups, terms)
            found = self._attention(nodes, places, lookups, asked) + self._gates(nodes, places) + len(lookups)
            found += note_functions(nodes, known) + self._dropouts(nodes, places)
            self._padding(lookups, terms, places)
            facts: dict[str, float | None] = {"targets_are_inputs": targets_are_inputs(lookups, terms)}
            if len(roots) == 1:
                found += self._latent(roots[0], places)
                facts["loss_without_floor"] = rewards(roots[0]) or is_unbounded(roots[0], nodes)
                if lowers_likelihood(roots[0]):
                    facts["loss_without_floor"] = Floor.LOWERS_LIKELIHOOD
        self._empty_looks = 0 if found else self._empty_looks + 1
        return {name: float(fact) for name, fact in facts.items() if fact is not None}

    def _padding(self, lookups: Sequence[Lookup], terms: Sequence[Term], places: list[Place]) -> None:
        for lookup in lookups:
            owner, inside = _owner(lookup.node, places), padding_inside(lookup)
            if owner is not None and inside is not None:
                asked = is_predicted(lookup, terms)
                is_token = asked or is_one_of_many(lookup, may_be_common=asked is None)
                owner.padding_inside = inside if is_token else 0.0

    def _dropouts(self, nodes: Sequence[Node], places: list[Place]) -> int:
        found = 0
        own = [(first, last) for _, first, last, one in places if isinstance(one.module, _DropoutNd)]
        for node in nodes:
            rate = dropped_share(node) if found < _MOST_ATTENTIONS else None
            if rate is None or any(first <= node._sequence_nr() < last for first, last in own):
                continue
            owner = _owner(node, places)
            if owner is not None:
                found += 1
                owner.dropped = max(rate, owner.dropped or 0.0)
        return found

    def _attention(
        self, nodes: Sequence[Node], places: list[Place], lookups: Sequence[Lookup], asked: Asked | None
    ) -> int:
        found = 0
        for node in nodes:
            elsewhere = normalised_elsewhere(node)
            owner = _owner(elsewhere[0], places) if elsewhere is not None else None
            if elsewhere is not None and owner is not None:
                _note_state(owner, AttentionState.NORMALISED_ELSEWHERE if elsewhere[1] else AttentionState.FINE)
        for node in nodes:
            name = operation(node)
            if not (name.startswith("ScaledDotProduct") or name.endswith("Softmax")) or found >= _MOST_ATTENTIONS:
                continue
            owner = _owner(node, places)
            attention = read_attention(node) if owner is not None else None
            seen = seen_keys(node) if owner is not None and lookups else None
            if owner is not None and seen is not None and sees_one_token(seen, lookups):
                _note_state(owner, AttentionState.SEES_PADDING)
            if owner is not None and asked is not None and sees_next_token(node, asked):
                _note_state(owner, AttentionState.SEES_ANSWERS)
            if owner is not None and attention is not None:
                found += 1
                _note_state(owner, AttentionState.UNSCALED if attention.unscaled else AttentionState.FINE)
                if attention.logit_max is not None:
                    owner.attention_logits.append(attention.logit_max)
                if attention.entropy is not None:
                    owner.attention_entropies.append(attention.entropy)
        return found

    def _latent(self, root: Any, places: list[Place]) -> bool:
        latent = read_latent(root)
        owner = _owner(latent.source, places) if latent is not None else None
        if latent is None or owner is None:
            return False
        owner.latent_nats = latent.nats
        return True

    def _gates(self, nodes: Sequence[Node], places: list[Place]) -> int:
        found = 0
        for gate in find_gates(nodes):
            owner = _owner(gate.linear, places)
            if owner is not None:
                found += 1
                owner.router_loads.append(gate.load_max)
                owner.router_outputs = gate.outputs
        return found


def _note_state(owner: Span, state: float) -> None:
    owner.attention_state = max(state, owner.attention_state or AttentionState.FINE)


def _owner(node: Node, places: list[Place]) -> Span | None:
    """The innermost module that ran this operation; where that is a whole model, the part of it that ran before."""
    number = node._sequence_nr()
    named = [place for place in places if not isinstance(place[3].module, _PARTS)]
    around = [place for place in named if place[1] <= number < place[2]]
    if len(around) != 1:
        return around[0][3] if around else None
    _, first, _, whole = around[0]
    before = [place for place in named if first <= place[1] and place[2] <= number]
    return max(before, key=lambda place: place[2])[3] if before else whole
