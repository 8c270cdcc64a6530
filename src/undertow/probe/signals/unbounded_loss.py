"""Is a loss unbounded below? A value and its exponential, where it holds both, must pull against each other.

A log-scale stands in a likelihood twice: as itself, and in an exponential that weighs an error. `exp(-s) * error + s`
has a least value, and `exp(s) * error - s`; with the other sign in front of `s` both parts fall together, for ever.
"""

from collections.abc import Sequence

import torch

from undertow.probe.signals.nodes import SAME_VALUES, Edge, Node, edges, is_leaf, only_edge, operation, saved
from undertow.probe.signals.terms import constant_factor

_MOST_NODES = 512
_MOST_EXPONENTIALS = 256
_MOST_ELEMENTS = 1 << 16
_MOST_STEPS = 32
_WHOLE = SAME_VALUES - {
    "Slice",
    "Split",
    "SplitWithSizes",
    "Chunk",
    "Unfold",
    "AsStrided",
}  # another part is another value
_SUMS = _WHOLE | {"Add", "Mean", "Sum", "Stack", "Cat"}
_BOUNDS = _SUMS | {"Sqrt", "Clamp", "ClampMin", "ClampMax"}


def is_unbounded(root: torch.Tensor, nodes: Sequence[Node]) -> bool | None:
    """None where no value stands beside its exponential."""
    exponentials = [node for node in nodes if operation(node) == "Exp"][:_MOST_EXPONENTIALS]
    if not exponentials or root.grad_fn is None:
        return None
    signs = linear_parts(root)
    consumers = _consumers(nodes)
    answers: dict[Edge, list[bool]] = {}
    for node in exponentials:
        value, slope = exponent(node)
        alone = signs.get(value) if value is not None else None
        if value is not None and alone and slope:
            # An exponential inside of something weighs an error, or divides it.
            by_itself = signs.get((node, 0))
            if by_itself is not None and by_itself < 0:
                return True  # it outgrows the value beside it
            weight = by_itself or _weight(node, consumers)
            if weight:
                answers.setdefault(value, []).append(alone * slope * weight > 0)
    return any(map(all, answers.values())) if answers else None


def _consumers(nodes: Sequence[Node]) -> dict[Node, list[tuple[Node, int]]]:
    """Of every node those that use what it put out, and as which of their inputs."""
    found: dict[Node, list[tuple[Node, int]]] = {}
    for node in nodes:
        for place, edge in enumerate(edges(node)):
            if edge is not None:
                found.setdefault(edge[0], []).append((node, place))
    return found


def _weight(exponential: Node, consumers: dict[Node, list[tuple[Node, int]]]) -> float:
    """1 when it multiplies something, -1 when it divides; 0 when both, or neither can be told."""
    signs: set[float] = set()
    waiting = [(exponential, 1.0)]
    for _ in range(_MOST_STEPS):
        if not waiting:
            return signs.pop() if len(signs) == 1 else 0.0
        node, sign = waiting.pop()
        for user, place in consumers.get(node, ()):
            name, alone = operation(user), only_edge(user) is not None
            if name == "Div" and place == 1:
                signs.add(-sign)
            elif name in ("Reciprocal", "Rsqrt"):
                waiting.append((user, -sign))
            elif name == "Pow" and isinstance(power := saved(user, "exponent"), (int, float)):
                waiting.append((user, sign if power > 0 else -sign))
            elif alone and (name in _BOUNDS or (name in ("Mul", "Div") and _is_number(constant_factor(user)))):
                waiting.append((user, sign))
            elif name == "Mul":
                signs.add(sign)
            else:
                return 0.0
    return 0.0


def _is_number(factor: torch.Tensor | float | None) -> bool:
    return factor is not None and (not isinstance(factor, torch.Tensor) or factor.numel() == 1)


def linear_parts(root: torch.Tensor) -> dict[Edge, float]:
    """What the loss is a weighted sum of, and the sign of the weight; 0 where both occur."""
    signs: dict[Edge, float] = {}
    waiting: list[tuple[Edge, float]] = [((root.grad_fn, int(root.output_nr)), 1.0)]
    for _ in range(_MOST_NODES):
        if not waiting:
            break
        edge, sign = waiting.pop()
        node = edge[0]
        name = "" if is_leaf(node) else operation(node)
        inputs = edges(node)
        if name in _SUMS:
            waiting += [(one, sign) for one in inputs if one is not None]
        elif name == "Sub":
            waiting += [(one, -sign if place else sign) for place, one in enumerate(inputs) if one is not None]
        elif name in ("Neg", "Rsub"):
            waiting += [(one, -sign) for one in inputs if one is not None]
        elif only_edge(node) is not None and (name == "Mul" or (name == "Div" and inputs[0] is not None)):
            factor = _sign(constant_factor(node))
            waiting += [(one, sign * factor) for one in inputs if one is not None and factor]
        else:
            signs[edge] = sign if signs.get(edge, sign) == sign else 0.0
    return signs


def exponent(node: Node) -> tuple[Edge | None, float]:
    """What an exponential was taken of, behind constants, and the sign in front of it."""
    edge, sign = only_edge(node), 1.0
    for _ in range(16):
        if edge is None or is_leaf(edge[0]):
            break
        name = operation(edge[0])
        if name == "Neg":
            sign = -sign
        elif name in ("Mul", "Div"):
            sign *= _sign(constant_factor(edge[0]))
        elif name not in _WHOLE:
            break
        inside = only_edge(edge[0])
        if inside is None:
            break
        edge = inside
    return edge, sign


def _sign(factor: torch.Tensor | float | None) -> float:
    """0 when it is unknown or not the same everywhere."""
    if factor is None or (isinstance(factor, torch.Tensor) and factor.numel() > _MOST_ELEMENTS):
        return 0.0
    values = torch.as_tensor(factor).detach()
    if values.device.type != "cpu" or values.is_complex() or not values.numel():
        return 0.0
    if bool((values >= 0).all()):
        return 1.0 if bool((values > 0).any()) else 0.0
    return -1.0 if bool((values <= 0).all()) else 0.0
