"""The analyses as plain data for JSON: everything but the per-sample series, which the run has anyway."""

from typing import Any

import msgspec

from undertow.schema.seeds.enhanced import EnhancedLayerGradientAnalysis
from undertow.schema.seeds.flow_records import GradientFlowVisualization

_LAYER_FIELDS = (
    "flow_consistency",
    "bottleneck_score",
    "information_flow_rate",
    "nonfinite_count",
    "first_nonfinite_step",
    "unavailable",
)
_PARTS = (
    "flow_network",
    "critical_paths",
    "vanishing_regions",
    "exploding_regions",
    "dead_zones",
    "nonfinite_layers",
    "unavailable",
)


def flow_document(flow: GradientFlowVisualization) -> dict[str, Any]:
    """Layers by name, then the network, its paths and its regions; keys are the fields of the records."""
    layers = {name: {key: getattr(layer, key) for key in _LAYER_FIELDS} for name, layer in flow.layer_flows.items()}
    return msgspec.to_builtins({"layers": layers} | {part: getattr(flow, part) for part in _PARTS})


def dynamics_document(dynamics: EnhancedLayerGradientAnalysis) -> dict[str, Any]:
    """The whole enhanced analysis; keys are the fields of the records."""
    return msgspec.to_builtins(dynamics)
