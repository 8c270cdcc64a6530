"""Frames of the gradient animator and what they add up to."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import field, replace
from enum import StrEnum
from math import isfinite
from pathlib import Path

from undertow.schema.seeds.arrays import InputError
from undertow.schema.seeds.record import Record, record


class GradientPresence(StrEnum):
    """What a layer's gradient was in a frame, before any statistic."""

    PRESENT = "present"
    NONFINITE = "non-finite"
    EMPTY = "empty"  # a tensor without elements
    MISSING = "missing"  # None: no gradient arrived


@record
class LayerGradientInfo(Record):
    """`mean_abs_grad` and `grad_norm` are NaN when any element is non-finite; `max_abs_grad` leaves NaN out."""

    name: str
    mean_abs_grad: float
    max_abs_grad: float
    grad_norm: float
    is_vanishing: bool
    is_exploding: bool
    flow_intensity: float
    nonfinite_count: int = 0
    presence: GradientPresence = GradientPresence.PRESENT


@record
class GradientFrame(Record):
    step: int
    layers: list[LayerGradientInfo]

    @classmethod
    def read_json(cls, path: str | os.PathLike[str]) -> list[GradientFrame]:
        """The frames that `export_json` wrote. What it wrote as null, because it was not finite, is NaN."""
        try:
            frames = json.loads(Path(path).read_bytes())
            for layer in (layer for frame in frames for layer in frame["layers"]):
                layer |= {name: "NaN" for name, value in layer.items() if value is None}
            return [cls.from_dict(frame) for frame in frames]
        except (ValueError, TypeError, KeyError) as problem:
            raise InputError(f"{os.fspath(path)} holds no frames: {problem}") from None

    @classmethod
    def read_csv(cls, path: str | os.PathLike[str]) -> list[GradientFrame]:
        """The frames that `export_csv` wrote, to nine digits; intensities are computed anew from the norms.

        The file does not tell how many elements were not finite (counted as one), nor an empty gradient from one of
        zeros.
        """
        frames: dict[int, list[LayerGradientInfo]] = {}
        with Path(path).open(encoding="utf-8", newline="") as file:
            try:
                for row in csv.DictReader(file, strict=True):
                    mean, top, norm = (float(row[name]) for name in ("mean_abs_grad", "max_abs_grad", "grad_norm"))
                    lost = int(not isfinite(norm))
                    layer = LayerGradientInfo(
                        row["layer"], mean, top, norm, row["is_vanishing"] == "1", row["is_exploding"] == "1", 0.0,
                        lost, GradientPresence.NONFINITE if lost else GradientPresence.PRESENT,
                    )  # fmt: skip
                    frames.setdefault(int(row["step"]), []).append(layer)
            except (ValueError, TypeError, KeyError, csv.Error) as problem:
                raise InputError(f"{os.fspath(path)} holds no frames: {problem!r}") from None
        return [cls(step, with_intensity(layers)) for step, layers in frames.items()]


def with_intensity(layers: list[LayerGradientInfo]) -> list[LayerGradientInfo]:
    """`flow_intensity` of each: its norm over the largest finite one of the frame."""
    largest = max((layer.grad_norm for layer in layers if isfinite(layer.grad_norm)), default=0.0)
    return [
        replace(layer, flow_intensity=min(layer.grad_norm / largest, 1.0) if largest > 0 else 0 * layer.grad_norm)
        for layer in layers
    ]


class GradientHealth(StrEnum):
    HEALTHY = "Healthy"
    MINOR_ISSUES = "MinorIssues"
    PROBLEMS_DETECTED = "ProblemsDetected"
    CRITICAL = "Critical"


class GradientIssue(StrEnum):
    VANISHING = "vanishing"
    EXPLODING = "exploding"
    NONFINITE = "non-finite"
    EMPTY = "empty"
    MISSING = "missing"


@record
class LayerIssueCount(Record):
    """How often a layer had one issue, over every frame ever recorded, also those the window has dropped."""

    layer_name: str
    issue: GradientIssue
    frames: int
    share: float  # of the frames in which the layer appeared
    longest_run: int
    first_step: int
    last_step: int


@record
class GradientFlowSummary(Record):
    """Lists of vanishing and exploding layers and the health cover the retained frames; the rest, all of them."""

    total_steps: int
    layers_with_vanishing_grads: list[str]
    layers_with_exploding_grads: list[str]
    overall_health: GradientHealth
    recommendations: list[str]
    layers_with_nonfinite_grads: list[str] = field(default_factory=list[str])
    layers_without_grads: list[str] = field(default_factory=list[str])  # empty or missing
    frames_recorded: int = 0
    frames_retained: int = 0
    first_step: int | None = None
    last_step: int | None = None
    issue_counts: list[LayerIssueCount] = field(default_factory=list[LayerIssueCount])
    unavailable: dict[str, str] = field(default_factory=dict[str, str])
