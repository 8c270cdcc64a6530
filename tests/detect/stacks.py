"""Models by hand, one module behind the other, watched by a single rule."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from numpy.random import default_rng
from tests.detect.building import Training

from undertow.detect.engine import Condition, Engine
from undertow.schema import GraphNode, GraphSource, Layer, LayerGraph, LayerKind, LayerTable

_MATRICES = {"Linear": (8, 8), "Conv2d": (8, 4, 3, 3), "RNN": (8, 8)}


def training(*conditions: type[Condition]) -> Training:
    """Three Linear layers, watched by these conditions."""
    made = Training("first", "second", "head")
    made.engine = Engine(conditions)
    made.engine.set_layers(made.layers, made.graph)
    return made


def noisy(levels: Iterable[float], share: float = 0.02, seed: int = 0) -> Iterator[float]:
    generator = default_rng(seed)
    return (float(level * math.exp(share * generator.standard_normal())) for level in levels)


def stack(rule: type[Condition] | Sequence[type[Condition]], *parts: str, frozen: tuple[str, ...] = ()) -> Training:
    """`stack(rule, "a:Linear", "b:ReLU")`; matrices have a weight and a bias, norms a scale, embeddings a table."""
    parameters: list[Layer] = []
    modules: list[Layer] = []
    for order, part in enumerate(parts):
        path, _, kind = part.partition(":")
        modules.append(Layer(path, kind=LayerKind.MODULE, order=10 * order + 5, module_type=kind))
        facts = {"order": 10 * order, "group": path, "module_type": kind, "trainable": path not in frozen}
        if kind in _MATRICES:
            shape = _MATRICES[kind]
            count = shape[0] * shape[1] * (9 if len(shape) == 4 else 1)
            parameters.append(
                Layer(f"{path}.weight", kind=LayerKind.WEIGHT, shape=shape, parameter_count=count, **facts)
            )
            parameters.append(Layer(f"{path}.bias", kind=LayerKind.BIAS, shape=(8,), parameter_count=8, **facts))
        if kind == "RNN":
            parameters.append(
                Layer(f"{path}.weight_hh_l0", kind=LayerKind.RECURRENT, shape=(8, 8), parameter_count=64, **facts)
            )
        if "Norm" in kind:
            parameters.append(
                Layer(f"{path}.weight", kind=LayerKind.NORM_SCALE, shape=(8,), parameter_count=8, **facts)
            )
        if kind == "Embedding":
            parameters.append(
                Layer(f"{path}.weight", kind=LayerKind.EMBEDDING, shape=(8, 8), parameter_count=64, **facts)
            )
    training = Training("unused")
    training.layers = LayerTable.of([*parameters, *modules])
    owners = list(dict.fromkeys(layer.group for layer in parameters))
    nodes = tuple(GraphNode(i, path) for i, path in enumerate(owners))
    edges = tuple((i, i + 1) for i in range(len(owners) - 1))
    training.graph = LayerGraph(nodes, edges, GraphSource.AUTOGRAD)
    training.engine = Engine(rule if isinstance(rule, Sequence) else [rule])
    training.engine.set_layers(training.layers, training.graph)
    return training
