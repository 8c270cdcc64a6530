"""A line of numbers in one row of characters."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: NDArray[np.float64], width: int) -> str:
    """The means of up to `width` equal parts; `×` where a part holds an infinite or undefined value."""
    if not len(values):
        return ""
    parts = np.array_split(values, min(width, len(values)))
    means = np.array([part.mean() if np.isfinite(part).all() else np.nan for part in parts])
    finite = means[np.isfinite(means)]
    low, span = (finite.min(), finite.max() - finite.min()) if finite.size else (0.0, 0.0)
    characters: list[str] = []
    for mean in means:
        if not np.isfinite(mean):
            characters.append("×")
        else:
            height = (mean - low) / span if span > 0 else 0.0
            characters.append(_BARS[min(len(_BARS) - 1, int(height * len(_BARS)))])
    return "".join(characters)
