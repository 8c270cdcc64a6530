"""Layers and numbers in sentences."""

import math
from collections.abc import Sequence

from undertow.detect.engine import LayerIndex


def name_layers(layout: LayerIndex, ids: Sequence[int], limit: int = 3) -> str:
    """`a, b and 4 more`."""
    names = [layout.path(i) for i in ids[:limit]]
    rest = len(ids) - len(names)
    if rest > 0:
        return f"{', '.join(names)} and {rest} more"
    if len(names) > 1:
        return f"{', '.join(names[:-1])} and {names[-1]}"
    return names[0] if names else "no layer"


def count_of(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def of_themselves(size: float) -> str:
    """How far weights moved: `12% of themselves`, `40 times their size`, `3e+17 times their size`."""
    if size < 10:
        return f"{size:.0%} of themselves"
    return f"{size:,.0f} times their size" if size < 1e6 else f"{size:.0e} times their size"


def known(value: float) -> float | None:
    """A number as evidence shows it: None when it was not measured."""
    return None if math.isnan(value) else float(value)
