"""Frames by hand: a small model whose every step is healthy until a test says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from undertow.detect.engine import Condition, Engine
from undertow.detect.engine.view import PLACES
from undertow.schema import (
    STREAMS,
    Block,
    Finding,
    Frame,
    GraphNode,
    GraphSource,
    Layer,
    LayerGraph,
    LayerKind,
    LayerTable,
)

HEALTHY = {
    "gradient_norm": 0.1,
    "gradient_zero_fraction": 0.0,
    "gradient_nonfinite_count": 0.0,
    "gradient_state": 0.0,
    "gradient_carried": 0.0,
    "gradient_optimizer": 0.0,
    "stepped_gradient_norm": 0.1,
    "stepped_gradient_max_abs": 0.01,
    "stepped_gradient_nonfinite_count": 0.0,
    "weight_norm": 1.0,
    "weight_max_abs": 0.3,
    "weight_nonfinite_count": 0.0,
    "update_norm": 1e-3,
    "update_ratio": 1e-3,
    "activation_calls": 1.0,
    "activation_zero_fraction": 0.5,
    "activation_nonfinite_count": 0.0,
    "output_gradient_nonfinite_count": 0.0,
}


def chain(*names: str, dtype: str = "float32") -> tuple[LayerTable, LayerGraph]:
    """A chain of Linear modules, each with weight and bias, with a ReLU after every one but the last."""
    layers: list[Layer] = []
    order = 0
    modules: list[Layer] = []
    for position, name in enumerate(names):
        modules.append(Layer(name, kind=LayerKind.MODULE, order=order, group=name, module_type="Linear"))
        layers.append(Layer(f"{name}.weight", kind=LayerKind.WEIGHT, order=order, parameter_count=64, group=name,
                            shape=(8, 8), dtype=dtype, module_type="Linear"))  # fmt: skip
        layers.append(Layer(f"{name}.bias", kind=LayerKind.BIAS, order=order, parameter_count=8, group=name,
                            shape=(8,), dtype=dtype, module_type="Linear"))  # fmt: skip
        order += 1
        if position < len(names) - 1:
            modules.append(Layer(f"{name}_relu", kind=LayerKind.MODULE, order=order, group=f"{name}_relu"))
            order += 1
    nodes = tuple(GraphNode(i, name) for i, name in enumerate(names))
    edges = tuple((i, i + 1) for i in range(len(names) - 1))
    return LayerTable.of([*layers, *modules]), LayerGraph(nodes, edges, GraphSource.AUTOGRAD)


def watched_by(*kinds: type[Condition], names: tuple[str, ...] = (), dtype: str = "float32") -> Training:
    """A training that only these conditions look at."""
    training = Training(*names, dtype=dtype)
    training.engine = Engine(kinds)
    training.engine.set_layers(training.layers, training.graph)
    return training


class Training:
    """Feeds an engine step by step. `changes` maps a quantity to a value, or to {path: value}."""

    def __init__(self, *names: str, dtype: str = "float32", blocks_cover_all: bool = False) -> None:
        self.blocks_cover_all = blocks_cover_all  # layers a frame does not speak of: absent, or NaN
        self.layers, self.graph = chain(*(names or ("first", "second", "third", "head")), dtype=dtype)
        self.engine = Engine()
        self.engine.set_layers(self.layers, self.graph)
        self.frames: list[Frame] = []
        self.log: list[tuple[str, str, int]] = []
        self.step = 0

    def frame(
        self,
        scalars: Mapping[str, float] | None = None,
        streams: tuple[str, ...] = ("gradient", "weight", "update", "activation"),
        only: tuple[str, ...] | None = None,
        **changes: Any,
    ) -> Frame:
        self._check(changes)
        blocks: dict[str, Block] = {}
        for name in streams:
            stream = STREAMS[name]
            chosen = self.layers.modules if stream.covers_modules else self.layers.parameters
            named = [only is None or layer.group in only or layer.path in only for layer in chosen]
            if not self.blocks_cover_all:
                chosen = [layer for layer, here in zip(chosen, named) if here]
                named = [True] * len(chosen)
            values = np.full((len(stream.quantities), len(chosen)), np.nan, np.float32)
            for row, quantity in enumerate(stream.names):
                values[row] = HEALTHY.get(quantity, np.nan)
                change = changes.get(quantity)
                if isinstance(change, dict):
                    for column, layer in enumerate(chosen):
                        values[row, column] = change.get(layer.path, change.get(layer.group, values[row, column]))
                elif change is not None:
                    values[row] = change
            values[:, ~np.array(named, bool)] = np.nan
            blocks[name] = Block(name, np.array([layer.id for layer in chosen], np.int32), values)
        scalar_values = {"loss": 1.0, "lr": 0.1, "step_skipped": 0.0, **(scalars or {})}
        return Frame(len(self.frames), self.step, float(self.step), scalar_values, blocks)

    def _check(self, changes: Mapping[str, Any]) -> None:
        """A misspelt name would change nothing, and a test of silence would pass."""
        layers = (*self.layers.parameters, *self.layers.modules)
        names = {name for layer in layers for name in (layer.path, layer.group)}
        for quantity, change in changes.items():
            if quantity not in PLACES:
                raise TypeError(f"{quantity!r} is no quantity of docs/quantities.md; scalars go into scalars={{…}}")
            missing = sorted(change.keys() - names) if isinstance(change, dict) else []
            if missing:
                raise TypeError(f"{quantity}: no layer is called {missing}; there are {sorted(names)}")

    def run(self, steps: int = 1, **changes: Any) -> Training:
        for _ in range(steps):
            frame = self.frame(**changes)
            self.frames.append(frame)
            for change in self.engine.observe(frame):
                self.log.append((change.change.value, change.finding.code, self.step))
            self.step += 1
        return self

    def findings(self) -> list[Finding]:
        return self.engine.findings()

    def codes(self) -> list[str]:
        return [finding.code for finding in self.findings()]

    def alarms(self) -> list[str]:
        return [finding.code for finding in self.findings() if finding.severity.is_alarm]
