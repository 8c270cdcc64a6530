"""Tokens as the graph shows them: what was looked up in embeddings, beside labels and masks of attention."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from undertow.probe.signals.graph_values import Value
from undertow.probe.signals.terms import Term

_MOST_TOKENS = 1 << 16
_MOST_NODES = 4096
_FEWEST_LABELS = 16
_VARIED = 3  # different tokens: fewer are flags or segments
_FEWEST_SAMPLES = 8
_COMMON = 2.0  # times the share of the commonest other token: what is commoner must tell by its places
_IN_RUNS = 1.5  # times as many neighbours as chance would make: padding follows padding


@dataclass(frozen=True, slots=True)
class Lookup:
    """One call of an embedding."""

    value: Value  # what it put out
    tokens: torch.Tensor  # samples × places
    padding: int | None
    rows: int


@dataclass(frozen=True, slots=True)
class Asked:
    """A loss whose labels are the tokens that come next: what a place must not see is the place behind it."""

    lookup: Lookup
    counted: torch.Tensor  # samples × places: whether the loss asks there


def find_lookups(named: Sequence[tuple[str, Value]]) -> list[Lookup]:
    """Those of whole sequences, where they can be read without waiting; from values with their operations."""
    found: list[Lookup] = []
    for name, value in named:
        tokens = value.tensor("indices") if name == "Embedding" else None
        if tokens is None or tokens.dim() != 2 or tokens.device.type != "cpu" or tokens.numel() > _MOST_TOKENS:
            continue
        padding, rows = value.integer("padding_idx"), value.saved("weight_sym_argsize_0")
        found.append(Lookup(value, tokens, None if padding is None or padding < 0 else padding, int(rows or 0)))
    return found


def padding_inside(lookup: Lookup) -> float | None:
    """Share of the tokens that are padding and yet stand before another token; None without a padding index."""
    if lookup.padding is None or lookup.tokens.shape[1] < _VARIED:
        return None
    padding = lookup.tokens == lookup.padding
    others = (~padding).long()
    before, after = others.cumsum(1) > 0, others.flip(1).cumsum(1).flip(1) > 0
    return float((padding & before & after).float().mean())


def is_predicted(lookup: Lookup, terms: Sequence[Term]) -> bool | None:
    """Is the padding token among the labels of a loss over the same vocabulary, and does it count there? None where
    there is no such loss."""
    asked: bool | None = None
    for term in terms:
        labels, given = term.value.tensor("target"), term.value.tensor("self")
        if labels is None or given is None or labels.is_floating_point() or given.dim() < 2:
            continue
        if given.shape[1] == lookup.rows:
            counts = term.value.integer("ignore_index") != lookup.padding
            asked = asked or (counts and bool((labels == lookup.padding).any()))
    return asked


def is_one_of_many(lookup: Lookup, may_be_common: bool = False) -> bool:
    """Does the padding token stand wherever others do, as often as they do? Padding stands at the ends.

    In columns of a table each place has tokens of its own, and a missing one may be padding anywhere. A token that is
    commoner than all others comes, unlike padding, no more often beside itself than chance would have it. Where tokens
    are hidden to be guessed, they are hidden in that way, too: then it must not be so common.
    """
    tokens, padding = lookup.tokens, lookup.padding
    samples, places = tokens.shape
    if padding is None or samples < _FEWEST_SAMPLES or places <= _VARIED:
        return False
    share = (tokens == padding).float().mean(0)
    ends, inside = max(float(share[0]), float(share[-1])), float(share[1:-1].mean())
    others = tokens[tokens != padding]
    known, counts = others.unique(return_counts=True)
    if len(known) < _VARIED or not 0 < ends <= _COMMON * inside:
        return False
    commonest = known[counts.argmax()]
    if not 2 * float((tokens == commonest).any(0).float().mean()) > 1:
        return False
    as_often = float(share.mean()) <= _COMMON * float(counts.max()) / tokens.numel()
    return as_often or (may_be_common and _is_scattered(tokens == padding))


def _is_scattered(padding: torch.Tensor) -> bool:
    """Amid others, in at most half of all places, and not in runs."""
    share = padding.float().mean(0)
    beside = float((padding[:, 1:] & padding[:, :-1]).float().mean())
    by_chance = float((share[1:] * share[:-1]).mean())
    return 2 * float(share.mean()) <= 1 and beside <= _IN_RUNS * by_chance


def next_tokens(lookups: Sequence[Lookup], terms: Sequence[Term]) -> Asked | None:
    """None also where several sequences hold the answers, as in copying: one of them may be seen as a whole."""
    found: list[Asked] = []
    for _, wanted, counted, alike in _labelled(lookups, terms):
        for one in alike:
            asked = counted[:, :-1]
            if one.tokens.shape != wanted.shape or not bool((one.tokens[:, 1:] == wanted[:, :-1])[asked].all()):
                continue
            if not _goes_round(one.tokens, wanted, counted):
                found.append(Asked(one, counted))
    return found[0] if len(found) == 1 else None


def _goes_round(tokens: torch.Tensor, wanted: torch.Tensor, counted: torch.Tensor) -> bool:
    """Does the last place ask for the first token? Then it is a shift in a circle that is to be learnt, and no text."""
    last = counted[:, -1]
    return bool(last.any()) and bool((wanted[:, -1] == tokens[:, 0])[last].all())


def _labelled(
    lookups: Sequence[Lookup], terms: Sequence[Term]
) -> Iterator[tuple[Term, torch.Tensor, torch.Tensor, list[Lookup]]]:
    """Of each loss over labels: these and which of them count, in the shape of the tokens, and lookups as long."""
    for term in terms:
        labels = term.value.tensor("target")
        if labels is None or labels.is_floating_point() or labels.numel() > _MOST_TOKENS:
            continue
        alike = [lookup for lookup in lookups if lookup.tokens.numel() == labels.numel() and lookup.tokens.shape[1] > 1]
        if not alike or labels.device.type != "cpu":
            continue
        wanted = labels.reshape(alike[0].tokens.shape)
        counted = wanted != term.value.integer("ignore_index")
        if int(counted.sum()) >= _FEWEST_LABELS and len(wanted[counted].unique()) >= _VARIED:
            yield term, wanted, counted, alike


def targets_are_inputs(lookups: Sequence[Lookup], terms: Sequence[Term]) -> float | None:
    """1 when every label is the token that was looked up at the same place, and a way leads from one to the other
    place by place; 0.5 when no such way is seen: a code of the whole sequence may lie between them. 2 when every label
    is the token one place before: shifted the wrong way. None where there are no such labels.

    A decoder that is given the labels one place late (teacher forcing) makes the same labels a task. So does a first
    place that has nothing to tell: to say the token before again is what memories are tried with.
    """
    for term, wanted, counted, alike in _labelled(lookups, terms):
        long = [one for one in alike if one.tokens.shape == wanted.shape]
        if any(bool((one.tokens[:, 1:] == wanted[:, :-1]).all()) for one in long):
            return 0.0
        same = [one for one in alike if bool((one.tokens.reshape(wanted.shape) == wanted)[counted].all())]
        if same:
            return 1.0 if any(is_reached(term.given, one) for one in same) else 0.5
        late = [one for one in long if bool((one.tokens[:, :-1] == wanted[:, 1:])[counted[:, 1:]].all())]
        return 2.0 if _varies(wanted, counted) and any(is_reached(term.given, one) for one in late) else 0.0
    return None


def _varies(wanted: torch.Tensor, counted: torch.Tensor) -> bool:
    """Does the loss ask for several tokens at the first place, as it does where a text was cut anywhere?"""
    return len(wanted[:, 0][counted[:, 0]].unique()) > 1


def is_reached(start: Value, lookup: Lookup) -> bool:
    """Is there a way from the scores to the embedding on which the number of places is never lost?"""
    places = {lookup.tokens.shape[1], lookup.tokens.numel()}
    waiting, seen = [start], set[Value]()
    while waiting and len(seen) < _MOST_NODES:
        value = waiting.pop()
        if value in seen or places.isdisjoint(value.shape or ()):
            continue
        if value.node == lookup.value.node:
            return True
        seen.add(value)
        waiting += value.sides
    return False


def sees_one_token(seen: torch.Tensor, lookups: Sequence[Lookup]) -> bool:
    """Do all places that attention may see (samples × places) hold one and the same token, and the others many?"""
    for lookup in lookups:
        if lookup.tokens.shape != seen.shape or bool(seen.all()) or not bool(seen.any()):
            continue
        if len(lookup.tokens[seen].unique()) == 1 and len(lookup.tokens[~seen].unique()) >= _VARIED:
            return True
    return False
