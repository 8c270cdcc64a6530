"""The vocabulary of Undertow: plain data, no torch, no input or output.

The records and enums of `undertow.schema.seeds` are importable from here as well, when they are asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

from undertow.schema.coverage import BlindRule, Coverage, StepsPerLayer, StreamCoverage
from undertow.schema.facts import FORMAT_VERSION, RunFacts, RunStatus
from undertow.schema.findings import Culprit, Diagnosis, Evidence, Finding, Overhead, Remedy, StepRange
from undertow.schema.frames import Block, Frame
from undertow.schema.graph import GraphNode, GraphSource, LayerGraph
from undertow.schema.layers import Layer, LayerKind, LayerTable
from undertow.schema.quantities import (
    QUANTITIES,
    STREAMS,
    AttentionState,
    Floor,
    GradientState,
    LossKind,
    LossReduction,
    Quantity,
    Repeat,
    Stream,
)
from undertow.schema.severity import Health, Severity, health_of
from undertow.schema.source import RecordedPlace, SourcePlace

if TYPE_CHECKING:
    from undertow.schema.seeds import *  # noqa: F403

__all__ = [
    "FORMAT_VERSION", "QUANTITIES", "STREAMS", "AttentionState", "BlindRule", "Block", "Coverage", "Culprit",
    "Diagnosis", "Evidence", "Finding", "Floor", "Frame", "GradientState", "GraphNode", "GraphSource", "Health",
    "Layer", "LayerGraph", "LayerKind", "LayerTable", "LossKind", "LossReduction", "Overhead", "Quantity",
    "RecordedPlace", "Remedy", "Repeat", "RunFacts", "RunStatus", "Severity", "SourcePlace", "StepRange",
    "StepsPerLayer", "Stream", "StreamCoverage", "health_of",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    seeds = importlib.import_module("undertow.schema.seeds")
    if name in seeds.__all__:
        return getattr(seeds, name)
    raise AttributeError(f"module 'undertow.schema' has no attribute {name!r}")
