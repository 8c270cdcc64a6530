"""What attention must do whatever it has learnt: weigh the keys it sums over, and see more than padding."""

import torch

from undertow.probe.signals.attention import HIDDEN, SOFTMAX, product_behind
from undertow.probe.signals.nodes import (
    SAME_VALUES,
    Edge,
    Node,
    edges,
    is_leaf,
    operation,
    producer,
    saved,
    saved_tensor,
)
from undertow.probe.signals.tokens import Asked, is_reached

_SUMS = {0: ("self", -1), 1: ("mat2", -2)}  # of a product: where each side is saved, and what it is summed over
_BATCHES = 8
_PASSED = SAME_VALUES | {"Mul", "NativeDropout", "NanToNum"}  # between weights and their use: dropout, or a repair
_ONE = 1e-3  # within which weights sum to one over their own dimension…
_NOT_ONE = 0.01  # …and beyond which they do not over another, on average: weights at the start are nearly equal


def normalised_elsewhere(node: Node) -> tuple[Node, bool] | None:
    """The softmax whose weights this product applies, and whether they sum to one over another dimension than the
    one that is summed over. None when the product applies no attention, or it cannot be told.
    """
    if operation(node) != "Bmm":
        return None
    for place, side in enumerate(edges(node)):
        softmax = _attention(side)
        if softmax is None:
            continue
        name, dimension = _SUMS[place]
        weights = _weights(saved_tensor(node, name), saved_tensor(softmax, "result"))
        if weights is None or weights.device.type != "cpu" or weights.dtype not in (torch.float32, torch.float64):
            return None
        weights = weights[:_BATCHES]
        over_keys, over_rows = weights.sum(dimension), weights.sum(-3 - dimension)
        elsewhere = (over_rows - 1).abs().max() < _ONE and (over_keys - 1).abs().mean() > _NOT_ONE
        return softmax, bool(elsewhere)
    return None


def _weights(used: torch.Tensor | None, made: torch.Tensor | None) -> torch.Tensor | None:
    """As the softmax made them, where they are used in the same order: dropout may have come between."""
    if used is None or made is None or made.dim() < 3 or used.shape != made.flatten(0, -3).shape:
        return used
    first, second = used[0], made.flatten(0, -3)[0]
    kept = (first != 0) & (second != 0)
    ratios = first[kept] / second[kept]  # weights that are dropped are zero, the others larger by one factor
    same = bool(len(ratios)) and bool((ratios - ratios[0]).abs().max() < _ONE * ratios[0].abs())
    return made.flatten(0, -3) if same else used


def _attention(side: Edge | None) -> Node | None:
    """The softmax these values are, if it was taken of a product of two things that are learnt."""
    made_by = producer(side, _PASSED)
    if made_by is None or is_leaf(made_by[0]) or operation(made_by[0]) not in SOFTMAX:
        return None
    product = product_behind(made_by)
    if product is None or sum(edge is not None for edge in edges(product)[-2:]) < 2:
        return None
    return made_by[0]


def seen_keys(node: Node) -> torch.Tensor | None:
    """Samples × keys: which keys at least one row may look at; None where nothing is hidden or it is not known."""
    if operation(node).startswith("ScaledDotProduct"):
        mask, query, key = saved_tensor(node, "attn_mask"), saved_tensor(node, "query"), saved_tensor(node, "key")
        if mask is None or query is None or key is None or query.dim() != 4 or mask.device.type != "cpu":
            return None
        visible = mask if mask.dtype == torch.bool else mask > HIDDEN
        shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        return visible.expand(shape)[:, 0].any(-2)
    shares = saved_tensor(node, "result") if operation(node) in SOFTMAX else None
    if shares is None or shares.dim() not in (3, 4) or shares.device.type != "cpu" or product_behind((node, 0)) is None:
        return None
    visible = (shares > 0).any(-2)
    return visible[:, 0] if visible.dim() == 3 else visible


def sees_next_token(node: Node, asked: Asked) -> bool:
    """May most places look at the one behind them, whose token is what they are asked for?"""
    samples, places = asked.lookup.tokens.shape
    built_in = operation(node).startswith("ScaledDotProduct")
    product = node if built_in else product_behind((node, 0)) if operation(node) in SOFTMAX else None
    if product is None:
        return False
    if built_in:
        visible = _visible_to_built_in(node, samples, places)
        keys = edges(product)[1]
    else:
        shares = saved_tensor(node, "result")
        right_shape = shares is not None and shares.dim() in (3, 4) and shares.shape[-2:] == (places, places)
        visible = shares > 0 if shares is not None and right_shape and shares.device.type == "cpu" else None
        keys = edges(product)[-1]
    if visible is None or visible.shape[0] % samples:
        return False
    ahead = visible.diagonal(1, -2, -1).reshape(samples, -1, places - 1).any(1)
    counted = asked.counted[:, :-1]
    return bool(counted.any()) and 2 * float(ahead[counted].float().mean()) > 1 and is_reached(keys, asked.lookup)


def _visible_to_built_in(node: Node, samples: int, places: int) -> torch.Tensor | None:
    """Samples × heads × places × places."""
    query, key, mask = (saved_tensor(node, name) for name in ("query", "key", "attn_mask"))
    if query is None or key is None or query.dim() != 4 or query.device.type != "cpu":
        return None
    if (len(query), query.shape[2], key.shape[2]) != (samples, places, places):
        return None
    shape = (samples, query.shape[1], places, places)
    if saved(node, "is_causal"):
        return torch.zeros(1, dtype=torch.bool).expand(shape)
    if mask is None:
        return torch.ones(1, dtype=torch.bool).expand(shape)
    return (mask if mask.dtype == torch.bool else mask > HIDDEN).expand(shape)
