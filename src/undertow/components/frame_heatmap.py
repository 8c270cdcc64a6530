"""Frames as a text heatmap."""

import itertools
import math
import unicodedata
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from undertow.schema.seeds.animation import GradientFrame, GradientPresence

BLOCKS = " ░▒▓█"
NONFINITE = "×"
MISSING = "·"
TITLE = "Gradient Flow Animation (step → right, layer ↓)"
NOTHING = "(no gradient frames recorded)\n"
LABEL_EVERY = 10  # columns of a thinned picture
DECADES = 8  # shown by the logarithmic scale, below the largest norm of the run


class HeatmapScale(StrEnum):
    FRAME = "frame"
    LAYER = "layer"
    RUN = "run"
    LOG = "log"


class HeatmapOrder(StrEnum):
    NAME = "name"
    EXECUTION = "execution"


_LEGEND = {
    HeatmapScale.LAYER: "scale: norm over the largest norm of the same layer",
    HeatmapScale.RUN: "scale: norm over the largest norm of the run",
    HeatmapScale.LOG: f"scale: log10, {DECADES} decades below the largest norm of the run",
}


def draw_heatmap(
    frames: list[GradientFrame], rows: list[str], scale: HeatmapScale, *, step_labels: bool, max_columns: int | None
) -> str:
    if not frames:
        return NOTHING
    retained = {layer.name for frame in frames for layer in frame.layers}
    rows = [name for name in rows if name in retained]
    cells, marks, flags = _cells(frames, rows, scale)
    stride = math.ceil(len(frames) / max_columns) if max_columns and max_columns > 0 else 1
    starts = range(0, len(frames), stride)
    width = max(5, max((display_width(name) for name in rows), default=8))
    lines = [TITLE, _pad("layer", width) + "  " + _header(starts)]
    lines.append("─" * (width + 2 + len(starts)))
    edges = [*starts, len(frames)]
    for row, name in enumerate(rows):
        line = _pad(name, width) + "  "
        for a, b in itertools.pairwise(edges):
            worst = max(range(a, b), key=lambda column: (flags[row, column], cells[row, column]))
            block = BLOCKS[min(4, math.floor(float(cells[row, worst]) * 4 + 0.5))]
            line += next((mark for mark in (NONFINITE, MISSING) if mark in marks[row][a:b]), block)
        lines.append(line)
    if scale in _LEGEND:
        lines.append(_LEGEND[scale])
    if step_labels:
        per = f", {stride} frames a column" if stride > 1 else ""
        lines.append(f"steps {frames[0].step} … {frames[-1].step}{per}")
    return "\n".join(lines) + "\n"


def _header(starts: range) -> str:
    """The index of each frame mod 10; of thinned ones in full, at every tenth column."""
    if starts.step == 1:
        return "".join(str(start % 10) for start in starts)
    marked = "".join(f"{start:<{LABEL_EVERY}}" for start in starts[::LABEL_EVERY])
    return marked[: max(len(starts), len(marked.rstrip()))].rstrip()


def _cells(
    frames: list[GradientFrame], rows: list[str], scale: HeatmapScale
) -> tuple[NDArray[np.float64], list[str], NDArray[np.int8]]:
    """Intensity of every cell (0 where a layer is missing from a frame), a mark where it is no number, and how bad the
    gradient was: 2 exploding, 1 vanishing."""
    place = {name: row for row, name in enumerate(rows)}
    intensity = np.zeros((len(rows), len(frames)))
    norms = np.zeros((len(rows), len(frames)))
    flags = np.zeros((len(rows), len(frames)), np.int8)
    marks = [[" "] * len(frames) for _ in rows]
    for column, frame in enumerate(frames):
        for layer in frame.layers:
            row = place[layer.name]
            flags[row, column] = 2 * layer.is_exploding or layer.is_vanishing
            if layer.presence is GradientPresence.NONFINITE:
                marks[row][column] = NONFINITE
            elif layer.presence is GradientPresence.MISSING:
                marks[row][column] = MISSING
            else:
                intensity[row, column], norms[row, column] = layer.flow_intensity, layer.grad_norm
    if scale is not HeatmapScale.FRAME and norms.size:
        largest = norms.max(axis=1, keepdims=True) if scale is HeatmapScale.LAYER else np.full((1, 1), norms.max())
        intensity = np.divide(norms, largest, out=np.zeros_like(norms), where=largest > 0)
        if scale is HeatmapScale.LOG:
            with np.errstate(divide="ignore"):
                intensity = np.clip(1 + np.log10(intensity) / DECADES, 0, 1)
    return intensity, ["".join(row) for row in marks], flags


def display_width(text: str) -> int:
    """Terminal columns: wide characters take two, combining marks none."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def _pad(text: str, width: int) -> str:
    return " " * (width - display_width(text)) + text
