"""Lines through gradient sizes along depth: each network has its own."""

from __future__ import annotations

import numpy as np
import pytest

from undertow.detect.engine import LayerIndex
from undertow.detect.features.depth_trend import chains_of
from undertow.schema import GraphNode, GraphSource, Layer, LayerGraph, LayerKind, LayerTable

NETWORKS = ("actor", "critic")


def layout(is_shared: bool) -> LayerIndex:
    """Two networks of four matrices that meet in their loss only, or behind which a third module follows."""
    names = [f"{network}.{place}" for network in NETWORKS for place in range(4)]
    layers = [
        Layer(f"{name}.weight", kind=LayerKind.WEIGHT, order=order, parameter_count=64, group=name, shape=(8, 8))
        for order, name in enumerate(names)
    ]
    nodes = [GraphNode(place, name) for place, name in enumerate(names)]
    edges = [(0, 1), (1, 2), (2, 3), (4, 5), (5, 6), (6, 7), (3, 8), (7, 8)]
    nodes.append(GraphNode(8, "", "Add", is_merge=True))
    if is_shared:
        nodes.append(GraphNode(9, "head"))
        edges.append((8, 9))
    return LayerIndex(LayerTable.of(layers), LayerGraph(tuple(nodes), tuple(edges), GraphSource.AUTOGRAD))


@pytest.mark.parametrize(("is_shared", "count", "rise"), [(False, 2, 0.0), (True, 1, 4.0)])
def test_networks_that_meet_in_a_loss_only_are_apart(is_shared: bool, count: int, rise: float) -> None:
    sizes = np.array([-5.0] * 4 + [-2.0] * 4)
    trends = chains_of(layout(is_shared)).trends(sizes)
    assert len(trends) == count
    for trend, own in trends:
        assert trend.rise == pytest.approx(rise)
        assert trend.size == np.isfinite(own).sum() == 8 // count


def test_without_a_graph_there_is_one_chain() -> None:
    layers = layout(False).layers
    assert len(chains_of(LayerIndex(layers)).places) == 1
