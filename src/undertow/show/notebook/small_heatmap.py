"""The heatmap of a run and its loss, small: for a cell of a notebook."""

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from undertow.run import Run
from undertow.show.notebook.markup import QUIET, text
from undertow.views.grid import Grid, folded, grid_of
from undertow.views.group_labels import Label, labels_of
from undertow.views.line_points import line_of_scalar
from undertow.views.palette import Cell, Palette, palette_of
from undertow.views.scale import ticks_of
from undertow.views.tiles import in_reading_order

_QUANTITY = "gradient_norm"
_COLUMNS, _ROWS = 400, 150  # at most; a page that is wider stretches them
_TALLEST, _ROW = 260, 14  # pixels
_LABELS = 14
_LINE = 13
_LOSS_POINTS = 300
_FRAME = "display:grid;grid-template-columns:minmax(60px,max-content) minmax(0,1fr);gap:3px 8px;margin:8px 0"


def drawing(run: Run) -> str:
    """Nothing where nothing was measured."""
    if not len(run.steps) or _QUANTITY not in run.quantities or not run.layers.parameters:
        return ""
    layers = in_reading_order(run.layers.parameters)
    whole = grid_of(run.reader, _QUANTITY, layers, (int(run.steps[0]), int(run.steps[-1])), _COLUMNS)
    palette = palette_of()
    height = min(_TALLEST, _ROW * len(layers))
    return (
        f'<div style="{_FRAME}">'
        + _loss(run)
        + _names(labels_of(whole.rows, _LABELS), len(whole.rows), height)
        + _picture(folded(whole, _ROWS), palette, height)
        + f'<div></div><div style="display:flex;justify-content:space-between;{QUIET}">'
        f"<span>step {whole.first:,}</span><span>{run.steps[-1]:,}</span></div></div>" + _legend(whole, palette)
    )


def _picture(grid: Grid, palette: Palette, height: int) -> str:
    style = f"width:100%;height:{height}px;image-rendering:pixelated;display:block"
    image = data_address(grid.colours(palette))
    return f'<img alt="Gradient norm of all layers over all steps" style="{style}" src="{image}">'


def _names(labels: list[Label], rows: int, height: int) -> str:
    """Beside the rows they stand for; one that would touch the name above goes without."""
    lines: list[str] = []
    free = -_LINE / 2
    for label in labels:
        top = height * (label.start + label.end) / 2 / rows - _LINE / 2
        if top < free:
            continue
        free = top + _LINE
        style = f"position:absolute;right:0;top:{top:.1f}px;line-height:{_LINE}px;white-space:nowrap"
        lines.append(f'<div style="{style}"><bdi>{text(_short(label.text))}</bdi></div>')
    widest = max(len(_short(label.text)) for label in labels)
    return f'<div style="position:relative;width:{0.58 * widest + 0.5:.1f}em;font-size:11px">{"".join(lines)}</div>'


def _short(words: str, most: int = 34) -> str:
    return words if len(words) <= most else f"…{words[-most:]}"


def _loss(run: Run) -> str:
    if "loss" not in run.scalar_names:
        return ""
    line = line_of_scalar(run.steps, run.scalars("loss"), _LOSS_POINTS)
    known = np.isfinite(line.mean)
    if known.sum() < 2:
        return ""
    steps, values = line.steps[known], line.mean[known]
    low, high = float(values.min()), float(values.max())
    across = 1000 * (steps - steps[0]) / max(1, steps[-1] - steps[0])
    down = 36 - 34 * (values - low) / (high - low) if high > low else np.full(len(values), 19.0)
    points = " ".join(f"{x:.0f},{y:.1f}" for x, y in zip(across, down))
    label = f'<div style="text-align:right;{QUIET}">loss</div>'
    svg = (
        '<svg viewBox="0 0 1000 38" preserveAspectRatio="none" style="width:100%;height:38px" role="img" '
        f'aria-label="loss from {values[0]:.3g} to {values[-1]:.3g}"><polyline points="{points}" fill="none" '
        'stroke="#3b82e0" stroke-width="1.5" vector-effect="non-scaling-stroke"/></svg>'
    )
    return label + svg


def _legend(grid: Grid, palette: Palette) -> str:
    """The ends of the scale, and the marks that the picture has."""
    ticks = ticks_of(grid.scale, 2)
    bar = data_address(palette.sequential(np.linspace(0, 1, 64, dtype=np.float32))[None])
    image = f'<img alt="to" style="width:110px;height:9px;display:inline;margin:0 5px" src="{bar}">'
    marks = "".join(_mark(palette, cell) for cell in sorted(grid.kinds - {Cell.VALUE}))
    return f"<div>{_quiet(f'gradient norm {ticks[0][1]}')}{image}{_quiet(ticks[-1][1])}{marks}</div>"


def _mark(palette: Palette, cell: Cell) -> str:
    mark = palette.marks[cell]
    patch = f"display:inline-block;width:10px;height:10px;margin:0 4px 0 14px;background:rgb{mark.colour}"
    return f'<span style="{patch}"></span>{_quiet(mark.name)}'


def _quiet(words: str) -> str:
    return f'<span style="{QUIET}">{text(words)}</span>'


def data_address(pixels: NDArray[np.uint8]) -> str:
    """Rows × columns × (red, green, blue) as an address that holds the PNG itself, without a library for pictures."""
    height, width, _ = pixels.shape
    lines = np.zeros((height, 1 + 3 * width), np.uint8)  # each line begins with its filter: none
    lines[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # eight bits of each of three colours
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
