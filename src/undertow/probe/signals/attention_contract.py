"""What attention must do whatever it has learnt: weigh the keys it sums over, and see more than padding."""

import torch

from undertow.probe.signals.attention import BUILT_IN, SOFTMAX, product_behind, visible_through
from undertow.probe.signals.graph_values import SAME_VALUES, Value
from undertow.probe.signals.tokens import Asked, is_reached

_SUMS = (("self", -1), ("mat2", -2))  # of a product: where each side is saved, and what it is summed over
_BATCHES = 8
_PASSED = SAME_VALUES | {"Mul", "NativeDropout", "NanToNum"}  # between weights and their use: dropout, or a repair
_ONE = 1e-3  # within which weights sum to one over their own dimension…
_NOT_ONE = 0.01  # …and beyond which they do not over another, on average: weights at the start are nearly equal


def normalised_elsewhere(product: Value) -> tuple[Value, bool] | None:
    """The softmax whose weights this product applies, and whether they sum to one over another dimension than the
    one that is summed over. None when the product applies no attention, or it cannot be told.
    """
    for side, (name, dimension) in zip(product.sides, _SUMS):
        softmax = side.producer(_PASSED)
        behind = product_behind(softmax) if softmax.operation in SOFTMAX else None
        if behind is None or not all(behind.value.sides[-2:]):  # of two things that are learnt
            continue
        weights = _weights(product.tensor(name), softmax.tensor("result"))
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


def seen_keys(attention: Value) -> torch.Tensor | None:
    """Samples × keys: which keys at least one row may attend to; None where nothing is hidden or it is not known."""
    if attention.operation.startswith(BUILT_IN):
        mask, query, key = (attention.tensor(name) for name in ("attn_mask", "query", "key"))
        if mask is None or query is None or key is None or query.dim() != 4 or mask.device.type != "cpu":
            return None
        return visible_through(mask).expand(*query.shape[:3], key.shape[2])[:, 0].any(-2)
    shares = attention.tensor("result") if attention.operation in SOFTMAX else None
    if shares is None or shares.dim() not in (3, 4) or shares.device.type != "cpu" or product_behind(attention) is None:
        return None
    visible = (shares > 0).any(-2)
    return visible[:, 0] if visible.dim() == 3 else visible


def sees_next_token(attention: Value, asked: Asked) -> bool:
    """May most places attend to the one behind them, whose token is what they are asked for?"""
    samples, places = asked.lookup.tokens.shape
    if attention.operation.startswith(BUILT_IN):
        visible, keys = _visible_to_built_in(attention, samples, places), attention.side(1)
    else:
        product = product_behind(attention) if attention.operation in SOFTMAX else None
        shares = attention.tensor("result")
        if product is None or shares is None or shares.dim() not in (3, 4) or shares.device.type != "cpu":
            return False
        visible, keys = shares > 0 if shares.shape[-2:] == (places, places) else None, product.value.sides[-1]
    if visible is None or visible.shape[0] % samples:
        return False
    ahead = visible.diagonal(1, -2, -1).reshape(samples, -1, places - 1).any(1)
    counted = asked.counted[:, :-1]
    return bool(counted.any()) and 2 * float(ahead[counted].float().mean()) > 1 and is_reached(keys, asked.lookup)


def _visible_to_built_in(attention: Value, samples: int, places: int) -> torch.Tensor | None:
    """Samples × heads × places × places."""
    query, key, mask = (attention.tensor(name) for name in ("query", "key", "attn_mask"))
    if query is None or key is None or query.dim() != 4 or query.device.type != "cpu":
        return None
    if (len(query), query.shape[2], key.shape[2]) != (samples, places, places):
        return None
    if mask is None or attention.saved("is_causal"):
        mask = torch.tensor(not attention.saved("is_causal"))
    return visible_through(mask).expand(samples, query.shape[1], places, places)
