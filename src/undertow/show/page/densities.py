"""The distributions of every layer as a page can carry them: a byte for each share, at some of the histogram frames.

For each layer and step: a byte for the exponent of the lowest bucket (plus 127; 255 where nothing is known), then the
shares as 255 · √share, so that small ones survive. `embedded.js` reads what is written here.
"""

import gzip

import numpy as np
from numpy.typing import NDArray

from undertow.run import Run
from undertow.show.page.pictures import Packed
from undertow.store.reader import RunReader
from undertow.views.density import STREAMS

_MOST_STEPS = 96
_LEAST_STEPS = 8
_UNKNOWN = 255
_BIAS = 127


def densities(run: Run, allowance: int) -> list[Packed]:
    """Of gradients, then of weights; at fewer steps, or not at all, where they would take more than is allowed."""
    found: list[Packed] = []
    for stream in STREAMS:
        packed = _within(run.reader, stream, allowance - sum(len(one.data) for one in found))
        found += [packed] if packed is not None else []
    return found


def _within(reader: RunReader, stream: str, allowance: int) -> Packed | None:
    name = f"{stream}_histogram"
    if name not in reader.quantities or allowance <= 0:
        return None
    ids = [layer.id for layer in reader.layers if not layer.is_module]
    steps, stored = reader.sketches(name, ids)
    if np.isnan(stored[:, :, 0]).all():
        return None
    most = _MOST_STEPS
    while most >= _LEAST_STEPS and len(steps):
        chosen = np.unique(np.linspace(0, len(steps) - 1, min(most, len(steps))).round().astype(np.int64))
        cells = _bytes(stored[chosen].transpose(1, 0, 2))
        data = gzip.compress(cells.tobytes(), 6, mtime=0)
        if len(data) <= allowance:
            facts = {"stream": stream, "steps": steps[chosen].tolist(), "layers": ids, "width": cells.shape[2]}
            return Packed(facts, data)
        most //= 2
    return None


def _bytes(stored: NDArray[np.float32]) -> NDArray[np.uint8]:
    known = ~np.isnan(stored[..., 0])
    cells = np.zeros(stored.shape, np.uint8)
    cells[..., 0] = np.where(known, np.nan_to_num(stored[..., 0]) + _BIAS, _UNKNOWN)
    cells[..., 1:] = np.ceil(255 * np.sqrt(np.nan_to_num(stored[..., 1:]))).clip(0, 255)
    return cells
