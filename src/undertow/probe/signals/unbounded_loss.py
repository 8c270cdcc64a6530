"""Is a loss unbounded below? A value and its exponential, where it holds both, must pull against each other.

A log-scale stands in a likelihood twice: as itself, and in an exponential that weighs an error. `exp(-s) * error + s`
has a least value, and `exp(s) * error - s`; with the other sign in front of `s` both parts fall together, for ever.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch

from undertow.probe.signals.graph_values import SAME_VALUES, SUMS, Factor, Node, Value, value_of

_MOST_NODES = 512
_MOST_EXPONENTIALS = 256
_MOST_ELEMENTS = 1 << 16
_MOST_STEPS = 32
# Another part is another value.
_WHOLE = SAME_VALUES - {"Slice", "Split", "SplitWithSizes", "Chunk", "Unfold", "AsStrided"}
_SUMS = _WHOLE | (SUMS - SAME_VALUES)
_BOUNDS = _SUMS | {"Sqrt", "Clamp", "ClampMin", "ClampMax"}

Users = dict[Node, list[tuple[Value, int]]]  # of every node those that use what it put out, and as which input


def is_unbounded(root: torch.Tensor, named: Sequence[tuple[str, Value]]) -> bool | None:
    """None where no value stands beside its exponential. `named`: all values of the graph, with their operations."""
    exponentials = [value for name, value in named if name == "Exp"][:_MOST_EXPONENTIALS]
    if not exponentials:
        return None
    signs = linear_parts(root)
    users: Users = defaultdict(list)
    for _, user in named:
        for place, side in enumerate(user.sides):
            users[side.node].append((user, place))
    answers: dict[Value, list[bool]] = {}
    for exponential in exponentials:
        value, slope = exponent(exponential)
        alone = signs.get(value)
        if alone and slope:
            by_itself = signs.get(exponential)
            if by_itself is not None and by_itself < 0:
                return True  # it outgrows the value beside it
            weight = by_itself or _weight(exponential, users)  # inside of something, it weighs an error or divides it
            if weight:
                answers.setdefault(value, []).append(alone * slope * weight > 0)
    return any(map(all, answers.values())) if answers else None


def _weight(exponential: Value, users: Users) -> float:
    """1 when it multiplies something, -1 when it divides; 0 when both, or neither can be told."""
    signs: set[float] = set()
    waiting = [(exponential, 1.0)]
    for _ in range(_MOST_STEPS):
        if not waiting:
            return signs.pop() if len(signs) == 1 else 0.0
        value, sign = waiting.pop()
        for user, place in users.get(value.node, ()):
            name = user.operation
            if name == "Div" and place == 1:
                signs.add(-sign)
            elif name in ("Reciprocal", "Rsqrt"):
                waiting.append((user, -sign))
            elif name == "Pow" and isinstance(power := user.saved("exponent"), (int, float)):
                waiting.append((user, sign if power > 0 else -sign))
            elif user.only and (name in _BOUNDS or (name in ("Mul", "Div") and _is_number(user.factor))):
                waiting.append((user, sign))
            elif name == "Mul":
                signs.add(sign)
            else:
                return 0.0
    return 0.0


def _is_number(factor: Factor | None) -> bool:
    return factor is not None and (not isinstance(factor, torch.Tensor) or factor.numel() == 1)


def linear_parts(root: torch.Tensor) -> dict[Value, float]:
    """What the loss is a weighted sum of, and the sign of the weight; 0 where both occur."""
    signs: dict[Value, float] = {}
    waiting = [(value_of(root), 1.0)]
    for _ in range(_MOST_NODES):
        if not waiting:
            break
        value, sign = waiting.pop()
        summands = value.summands(_SUMS)
        waiting += [(one, sign * part) for one, factor in summands if (part := _sign(factor))]
        if not summands:
            signs[value] = sign if signs.get(value, sign) == sign else 0.0
    return signs


def exponent(exponential: Value) -> tuple[Value, float]:
    """What an exponential was taken of, behind constants, and the sign in front of it."""
    value, sign = exponential.only, 1.0
    for _ in range(16):
        name = value.operation
        if name == "Neg":
            sign = -sign
        elif name in ("Mul", "Div"):
            sign *= _sign(value.factor)
        elif name not in _WHOLE:
            break
        if not value.only:
            break
        value = value.only
    return value, sign


def _sign(factor: Factor | None) -> float:
    """0 when it is unknown or not the same everywhere."""
    if factor is None:
        return 0.0
    if not isinstance(factor, torch.Tensor):
        return 1.0 if factor > 0 else -1.0 if factor < 0 else 0.0
    if factor.numel() > _MOST_ELEMENTS or factor.device.type != "cpu" or factor.is_complex() or not factor.numel():
        return 0.0
    if bool((factor >= 0).all()):
        return 1.0 if bool((factor > 0).any()) else 0.0
    return -1.0 if bool((factor <= 0).all()) else 0.0
