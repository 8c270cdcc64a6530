"""A line of numbers in a row or two of characters, one for each interval of steps."""

import numpy as np
from numpy.typing import NDArray

_BARS = " ▁▂▃▄▅▆▇█"
_PLAIN_BARS = " _.-=+*#@"
_EIGHTHS = 8
_WIDE = 100.0  # a loss that spans more than this is drawn on a logarithmic scale


def is_wide(values: NDArray[np.float64]) -> bool:
    finite = values[np.isfinite(values)]
    return bool(finite.size and finite.min() > 0 and finite.max() > _WIDE * finite.min())


def sparkline(values: NDArray[np.float64], bad: NDArray[np.bool_], rows: int = 1, unicode: bool = True) -> list[str]:
    """One character per value in each row, the upper row first; blank where there is none, `×` where one is `bad`."""
    heights = np.log(np.where(values > 0, values, np.nan)) if is_wide(values) else values.astype(np.float64)
    finite = heights[np.isfinite(heights)]
    low, span = (finite.min(), finite.max() - finite.min()) if finite.size else (0.0, 0.0)
    with np.errstate(invalid="ignore"):
        share = (heights - low) / span if span > 0 else np.where(np.isfinite(heights), 0.0, np.nan)
    top = rows * _EIGHTHS
    filled = np.where(np.isfinite(share), np.clip(1 + np.floor(np.nan_to_num(share) * (top - 1) + 0.5), 1, top), 0)
    bars = _BARS if unicode else _PLAIN_BARS
    lines: list[str] = []
    for row in reversed(range(rows)):
        eighths = np.clip(filled - row * _EIGHTHS, 0, _EIGHTHS).astype(int).tolist()
        sign = ("×" if unicode else "x") if row == 0 else " "
        lines.append("".join(sign if wrong else bars[count] for count, wrong in zip(eighths, bad.tolist())))
    return lines
