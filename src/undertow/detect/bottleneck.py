"""Places in the executed graph that samples enter different and leave all the same, with no way around."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from undertow.detect.engine.layer_index import LayerIndex

Test = Callable[[int], bool]  # of a module, by its layer id


def bottlenecks(layout: LayerIndex, differ: Test, equal: Test) -> Iterator[tuple[int, int]]:
    """Pairs of modules: outputs of the first differ between samples, those of the second, which it feeds, do not,
    although all that the first one says must pass there.
    """
    nodes = {node.id: layout.layers.get(node.path) for node in layout.graph.nodes if not node.is_merge}
    modules = {node: layer.id for node, layer in nodes.items() if layer is not None}
    following: dict[int, list[int]] = {}
    for source, target in layout.graph.edges:
        following.setdefault(source, []).append(target)
    flat = {node for node, module in modules.items() if equal(module)}
    if not flat:
        return
    for node, module in modules.items():
        if differ(module):
            met = _met(node, following, flat)
            if met is not None:
                yield module, modules[met]


def _met(start: int, following: dict[int, list[int]], flat: set[int]) -> int | None:
    """The first flat node on the way forward; None when a way leads past all of them to the end."""
    met: int | None = None
    seen, waiting = {start}, list(following.get(start, ()))
    if not waiting:
        return None
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in flat:
            met = node if met is None else min(met, node)
        elif node in following:
            waiting.extend(following[node])
        else:
            return None
    return met
