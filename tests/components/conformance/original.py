"""The arithmetic of the original, as its digest states it, for the quantities that Undertow keeps digit for digit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

Numbers = Sequence[float]


def flow_rate(x: Numbers) -> float:
    return 0.0 if len(x) < 2 else sum(abs(b - a) for a, b in pairwise(x)) / len(x)


def mean(x: Numbers) -> float:
    return sum(x) / len(x)


def std(x: Numbers) -> float:
    middle = mean(x)
    return math.sqrt(sum((one - middle) ** 2 for one in x) / len(x))


def moment(x: Numbers, power: int) -> float:
    middle, spread = mean(x), std(x)
    return sum(((one - middle) / spread) ** power for one in x) / len(x) - 3 * (power == 4) if spread > 0 else 0.0


def median(x: Numbers) -> float:
    ordered, half = sorted(x), len(x) // 2
    return ordered[half] if len(x) % 2 else (ordered[half - 1] + ordered[half]) / 2


def slope(x: Numbers) -> float:
    n, index = len(x), range(len(x))
    above = n * sum(i * y for i, y in zip(index, x)) - sum(index) * sum(x)
    return above / (n * sum(i * i for i in index) - sum(index) ** 2)


def smoothness(x: Numbers) -> float:
    if len(x) < 3:
        return 1.0
    return min(1.0, 1 / (1 + mean([abs(c - 2 * b + a) for a, b, c in zip(x, x[1:], x[2:])])))


def turns(x: Numbers) -> float:
    if len(x) < 4:
        return 0.0
    changes = [b - a for a, b in pairwise(x)]
    return sum(a * b < 0 for a, b in pairwise(changes)) / len(x)


def dead_zone(x: Numbers) -> tuple[int, bool] | None:
    """Duration and whether to intervene."""
    dead = sum(one < 1e-8 for one in x)
    return (dead, dead / len(x) > 0.8) if x and dead / len(x) > 0.5 else None


def score(tensor: Numbers) -> int:
    extreme = max(abs(max(tensor)), abs(min(tensor))) > 10
    zeros = sum(one == 0 for one in tensor) / len(tensor) > 0.5
    skewed = len(tensor) >= 3 and abs(moment(tensor, 3)) > 2
    heavy = len(tensor) >= 4 and moment(tensor, 4) > 10
    return 100 - 20 * extreme - 30 * zeros - 15 * skewed - 15 * heavy


def block(intensity: float) -> str:
    return " ░▒▓█"[min(4, math.floor(intensity * 4 + 0.5))]
