"""Where a number lies on its scale, the number at a place of it, and the ticks beside it."""

import math

import numpy as np
from numpy.typing import NDArray

from undertow.views.scale import Scale, ScaleKind


def levels_of(scale: Scale, values: NDArray[np.float32] | NDArray[np.float64]) -> NDArray[np.float32]:
    """From 0 at the low end to 1 at the high end; beyond the ends it is cut off. NaN stays NaN."""
    numbers = values.astype(np.float64)
    if scale.kind is ScaleKind.LINEAR:
        levels = (numbers - scale.low) / (scale.high - scale.low)
    else:
        with np.errstate(divide="ignore"):
            sizes = np.log(np.abs(numbers) / scale.low) / math.log(scale.high / scale.low)
        if scale.kind is ScaleKind.SIGNED:
            levels = 0.5 + 0.5 * np.sign(numbers) * np.clip(sizes, 0, 1)
        else:
            levels = np.where(numbers <= 0, 0.0, sizes)
    return np.clip(levels, 0, 1).astype(np.float32)


def value_at(scale: Scale, level: float) -> float:
    if scale.kind is ScaleKind.LINEAR:
        return scale.low + level * (scale.high - scale.low)
    if scale.kind is ScaleKind.SIGNED:
        side = 2 * level - 1
        return math.copysign(scale.low * (scale.high / scale.low) ** abs(side), side) if side else 0.0
    return scale.low * (scale.high / scale.low) ** level


def ticks_of(scale: Scale, most: int) -> list[tuple[float, str]]:
    """At most that many levels with their numbers: whole decades where the scale has decades."""
    if scale.kind is ScaleKind.LOGARITHMIC:
        first, last = round(math.log10(scale.low)), round(math.log10(scale.high))
        every = max(1, -(-(last - first) // max(1, most - 1)))
        decades = range(first, last + 1, every)
        return [((decade - first) / max(1, last - first), number(10.0**decade)) for decade in decades]
    places = (0.0, 0.5, 1.0) if most < 5 else (0.0, 0.25, 0.5, 0.75, 1.0)
    return [(place, number(value_at(scale, place))) for place in places]


def number(value: float) -> str:
    """Three digits: `0.012`, `340`, `1e-7`, `2.5e+12`."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if 1e-3 <= abs(value) < 1e5:
        return f"{float(f'{value:.3g}'):.10f}".rstrip("0").rstrip(".") if abs(value) < 1000 else f"{value:,.0f}"
    digits, _, exponent = f"{value:.2e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{exponent[0] if exponent[0] == '-' else '+'}{int(exponent[1:])}"
