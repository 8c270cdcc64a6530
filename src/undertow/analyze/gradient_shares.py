"""How the gradient at every layer is made up of what the layers it feeds send back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from undertow.analyze.series import Floats
from undertow.analyze.topology import Topology
from undertow.schema.graph import LOSS

Edge = tuple[int, int]
_LEAST = 1e-3  # that must come back from layers further on, beside what goes round in a cycle


@dataclass(frozen=True, slots=True)
class GradientShares:
    """Of every layer the shares of those it feeds and of the loss, 1 together. What is not known is absent."""

    edges: Mapping[Edge, float]
    sizes: Mapping[Edge, float]  # norm of what comes back along it, over the norm of all that does
    to_loss: Mapping[int, float]  # past all other layers

    @classmethod
    def unknown(cls, topology: Topology) -> GradientShares:
        """Of a chain in the order of calls, which need not be who feeds whom."""
        return cls({}, shares_by_structure(topology).sizes, {})


def shares_by_structure(topology: Topology) -> GradientShares:
    """A layer that feeds one other gets all its gradient from there; of several nobody knows without a measurement."""
    alone = [(layer, users[0]) for layer, users in topology.feeds.items() if len(users) == 1]
    edges = dict.fromkeys(alone, 1.0)
    loss = {layer: 0.0 if users else 1.0 for layer, users in topology.feeds.items() if len(users) < 2}
    return GradientShares(edges, edges, loss)


def given_shares(topology: Topology, given: Mapping[Edge, float]) -> GradientShares:
    """Those of `given` beside those that follow from the structure; what is missing to 1 goes to the loss."""
    plain = shares_by_structure(topology)
    edges, loss = dict(plain.edges), dict(plain.to_loss)
    for layer, users in topology.feeds.items():
        own = {(layer, user): given[layer, user] for user in users if (layer, user) in given}
        if users and len(own) == len(users):
            edges |= own
            loss[layer] = 1.0 - sum(own.values())
    return GradientShares(edges, plain.sizes, loss)


def measured_shares(
    topology: Topology, connections: Sequence[tuple[str, str]], share: Floats, size: Floats
) -> GradientShares:
    """From one number for each connection of a run's graph. Connections through what is no layer of the topology, such
    as places where branches meet, are followed to the next that is: along such a way shares and sizes multiply."""
    index = {name: place for place, name in enumerate(topology.names)}
    table: dict[str, dict[str, tuple[float, float]]] = {}
    for (start, end), *numbers in zip(connections, share.tolist(), size.tolist()):
        table.setdefault(start, {})[end] = (numbers[0], numbers[1])
    behind: dict[str, dict[str, tuple[float, float]]] = {}  # of what is no layer, by layer or loss
    for label in reversed(table):
        if label not in index:
            behind[label] = _followed(label, table[label], index, behind)
    plain = shares_by_structure(topology)
    edges, sizes, loss = dict(plain.edges), dict(plain.sizes), dict(plain.to_loss)
    for layer, users in topology.feeds.items():
        label = topology.names[layer]
        found = _followed(label, table.get(label, {}), index, behind)
        own = {(layer, user): found.get(topology.names[user], (0.0, 0.0)) for user in users}
        past = found.get(LOSS, (0.0, 0.0))[0]
        whole = sum(value for value, _ in own.values()) + past
        if not abs(whole) > _LEAST:  # nothing was measured here, or NaN
            continue
        edges |= {edge: value / whole for edge, (value, _) in own.items()}  # without what goes round in a cycle
        sizes |= {edge: extent for edge, (_, extent) in own.items()}
        loss[layer] = past / whole
    return GradientShares(edges, sizes, loss)


def _followed(
    label: str,
    users: Mapping[str, tuple[float, float]],
    index: Mapping[str, int],
    behind: Mapping[str, Mapping[str, tuple[float, float]]],
) -> dict[str, tuple[float, float]]:
    """What a label feeds, as far as layers and the loss; ways back to where it came from are left out."""
    found: dict[str, tuple[float, float]] = {}
    for user, (share, size) in users.items():
        ends = {user: (1.0, 1.0)} if user in index or user == LOSS else behind.get(user, {})
        for end, (further, part) in ends.items() if user != label else ():
            before = found.get(end, (0.0, 0.0))
            found[end] = before[0] + share * further, float(np.hypot(before[1], size * part))
    return found
