"""Attention as the graph shows it: how large its logits are, and how widely it spreads.

Both forms are known: torch's own operation, whose queries and keys are saved, and a softmax over products that the
user has written out. A few heads and rows are computed again; masked places count for neither number.
"""

import math
from typing import NamedTuple

import torch

from undertow.probe.signals.graph_values import NOTHING, SAME_VALUES, Value, number_of
from undertow.probe.signals.linear_layer import PRODUCTS

_ELEMENTS = 1 << 18
_MOST_HEADS = 32
_STEPS = 24  # nodes between a softmax and the product it is taken of
HIDDEN = -1e4  # an added mask hides what it pushes below this
_WIDE = 16  # numbers to a query: fewer need no scale
_LARGE = 2.0  # deviation of the logits; new ones that are divided by the root of their width have 1 at most
_SIDES = {"Bmm": ("self", "mat2"), "Baddbmm": ("batch1", "batch2")}  # of a product, as they are saved
_PASSED = SAME_VALUES | {"Add", "Sub", "Mul", "Div", "MaskedFill", "Where"}

SOFTMAX = ("Softmax", "SafeSoftmax")
BUILT_IN = "ScaledDotProduct"  # how the names of torch's own operations begin


class Attention(NamedTuple):
    logit_max: float | None
    entropy: float | None  # share of the largest possible
    unscaled: bool = False  # logits are plain products of queries and keys, and large


class Product(NamedTuple):
    """The product of two activations that a softmax is taken of."""

    value: Value = NOTHING
    factor: float = 1.0
    scaled: bool = False  # by a constant or by anything learnt
    mask: torch.Tensor | None = None  # True: hidden


def read_attention(value: Value) -> Attention | None:
    """None when this is no attention, or cannot be read without waiting."""
    if value.operation.startswith(BUILT_IN):
        return _built_in(value)
    return _by_hand(value) if value.operation in SOFTMAX else None


def _built_in(value: Value) -> Attention | None:
    query, key = value.tensor("query"), value.tensor("key")
    if query is None or key is None or query.dim() != 4 or query.device.type != "cpu" or key.shape[1] == 0:
        return None
    heads, length, keys = query.shape[1], query.shape[2], key.shape[2]
    samples, chosen, rows = _chosen(query.shape[0], heads, length, keys)
    scale = value.saved("scale")
    scale = float(scale) if isinstance(scale, (int, float)) else 1.0 / math.sqrt(query.shape[3])
    some_keys = key[:samples].repeat_interleave(heads // key.shape[1], dim=1) if key.shape[1] < heads else key[:samples]
    some = query[:samples][..., rows, :].flatten(0, 1)[:chosen].float()
    logits = some @ some_keys.flatten(0, 1)[:chosen].float().transpose(1, 2) * scale
    visible = torch.ones_like(logits, dtype=torch.bool)
    if value.saved("is_causal"):
        visible &= torch.arange(keys)[None, :] <= rows[:, None]
    mask = value.tensor("attn_mask")
    if mask is not None:
        part = _part(mask, (query.shape[0], heads, length, keys), samples, chosen, rows)
        visible &= visible_through(part)
        if part.dtype != torch.bool:
            logits = logits + part.float()
    return Attention(_largest(logits, visible), _entropy(logits.masked_fill(~visible, -math.inf).softmax(-1), visible))


def visible_through(mask: torch.Tensor) -> torch.Tensor:
    return mask if mask.dtype == torch.bool else mask > HIDDEN


def _by_hand(softmax: Value) -> Attention | None:
    shares = softmax.tensor("result")
    if shares is None or shares.dim() not in (3, 4) or shares.device.type != "cpu" or shares.shape[-1] < 2:
        return None
    product = product_behind(softmax)
    if softmax.integer("dim") not in (-1, shares.dim() - 1) or product is None:
        return None
    shape = tuple(shares.shape) if shares.dim() == 4 else (shares.shape[0], 1, *shares.shape[1:])
    samples, chosen, rows = _chosen(*shape)
    part = _part(shares, shape, samples, chosen, rows).float()
    visible = _visible(part, product.mask, shape, (samples, chosen, rows))
    left, right = (product.value.tensor(name) for name in _SIDES[product.value.operation])
    logit_max, unscaled = None, False
    if left is not None and right is not None and (len(left), left.shape[1]) == (shape[0] * shape[1], shape[2]):
        logits = left[:chosen][:, rows].float() @ right[:chosen].float() * product.factor
        logit_max = _largest(logits, visible)
        # From a linear layer as they are, neither scaled nor normalised nor turned.
        plain = all(side.producer().operation in PRODUCTS for side in product.value.sides[-2:])
        is_large = left.shape[-1] >= _WIDE and not product.scaled and plain
        unscaled = is_large and bool(logits[visible].std() > _LARGE)
    return Attention(logit_max, _entropy(part, visible), unscaled)


def product_behind(softmax: Value) -> Product | None:
    """None where the softmax is taken of anything else, and is no attention."""
    stack = [Product(one) for one in softmax.inputs]
    for _ in range(_STEPS):
        if not stack:
            return None
        value, factor, scaled, mask = stack.pop()
        name = value.operation
        if name in _SIDES:
            return Product(value, factor, scaled or name != "Bmm", mask)
        if name not in _PASSED:
            continue
        if name in ("Mul", "Div"):
            scaled = True
            if value.only:
                number = number_of(value.factor)
                factor = math.nan if not number else factor * number if name == "Mul" else factor / number
        elif name == "MaskedFill":
            mask = value.tensor("mask")
        stack.extend(Product(one, factor, scaled, mask) for one in reversed(value.inputs))
    return None


# -- a part of a tensor of (samples × heads × rows × keys) -----------------------------------------------------


def _chosen(samples: int, heads: int, rows: int, keys: int) -> tuple[int, int, torch.Tensor]:
    """How many samples and heads are read, and which rows."""
    chosen = max(1, min(_MOST_HEADS, samples * heads))
    count = max(1, min(rows, _ELEMENTS // max(1, chosen * keys)))
    which = torch.arange(0, rows, max(1, -(-rows // count)))
    return -(-chosen // heads), chosen, which


def _part(values: torch.Tensor, shape: tuple[int, ...], samples: int, chosen: int, rows: torch.Tensor) -> torch.Tensor:
    """The chosen part as (heads × rows × keys); values may lack dimensions, as masks do."""
    whole = values[:, None] if values.dim() == 3 and shape[1] == 1 and values.shape[0] == shape[0] else values
    return whole.expand(shape)[:samples][..., rows, :].flatten(0, 1)[:chosen]


def _visible(
    shares: torch.Tensor,
    mask: torch.Tensor | None,
    shape: tuple[int, ...],
    part: tuple[int, int, torch.Tensor],
) -> torch.Tensor:
    """Where attention may go: by the mask in the graph, or as zeros that can only come from one."""
    if mask is not None:
        try:
            return ~_part(mask, shape, *part)
        except RuntimeError:  # a mask of another shape: it was put on before a reshape
            pass
    rows, keys = part[2], shares.shape[-1]
    ahead = torch.arange(keys)[None, :] > rows[:, None]
    if shape[2] == keys and bool(ahead.any()) and not bool((shares * ahead).any()):
        return (~ahead).expand(shares.shape)
    used = (shares > 0).any(dim=1, keepdim=True)  # padding is hidden from all rows
    used = used | (used.sum(-1, keepdim=True) < 2)
    return used.expand(shares.shape)


def _largest(logits: torch.Tensor, visible: torch.Tensor) -> float | None:
    largest = float(logits.abs().masked_fill(~visible, 0.0).amax()) if logits.numel() else math.nan
    return largest if math.isfinite(largest) else None


def _entropy(shares: torch.Tensor, visible: torch.Tensor) -> float | None:
    count = visible.sum(-1)
    counted = count > 1
    if not bool(counted.any()):
        return None
    entropy = -(shares * shares.clamp_min(1e-38).log()).sum(-1)
    value = float((entropy / count.clamp_min(2).float().log())[counted].mean())
    return value if math.isfinite(value) else None
