"""Frames as text for other programs: JSON and CSV."""

import csv
import io
import math
from collections.abc import Iterable
from typing import Any

from undertow.schema.seeds.animation import GradientFrame, GradientPresence, LayerGradientInfo
from undertow.schema.seeds.record import json_text

HEADER = ("step", "layer", "mean_abs_grad", "max_abs_grad", "grad_norm", "is_vanishing", "is_exploding")


def frames_as_json(frames: Iterable[GradientFrame]) -> str:
    """Strict JSON, two spaces of indent, no newline at the end; numbers as the original spells them: 1e-8, 1e16."""
    table = [{"step": frame.step, "layers": [_layer(layer) for layer in frame.layers]} for frame in frames]
    return json_text(table, indent=2)


def _layer(layer: LayerGradientInfo) -> dict[str, Any]:
    """A number that is not finite becomes null; its count and the state are said where there is something to say."""
    record = layer.to_dict()
    if not layer.nonfinite_count:
        del record["nonfinite_count"]
    if layer.presence is GradientPresence.PRESENT:
        del record["presence"]
    return {name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in record.items()}  # fmt: skip


def frames_as_csv(frames: Iterable[GradientFrame]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    for frame in frames:
        for layer in frame.layers:
            numbers = (scientific(value) for value in (layer.mean_abs_grad, layer.max_abs_grad, layer.grad_norm))
            writer.writerow((frame.step, layer.name, *numbers, int(layer.is_vanishing), int(layer.is_exploding)))
    return text.getvalue()


def scientific(value: float) -> str:
    """Eight digits after the point, the exponent without plus sign or padding: 2.00000000e-1."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    digits, exponent = f"{value:.8e}".split("e")
    return f"{digits}e{int(exponent)}"
