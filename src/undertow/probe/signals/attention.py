"""Attention as the graph shows it: how large its logits are, and how widely it spreads.

Both forms are known: torch's own operation, whose queries and keys are saved, and a softmax over products that the
user has written out. A few heads and rows are computed again; masked places count for neither number.
"""

import math
from dataclasses import dataclass

import torch

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
    signed,
)
from undertow.probe.signals.terms import constant_factor, number_of

_ELEMENTS = 1 << 18
_MOST_HEADS = 32
_STEPS = 24  # nodes between a softmax and the product it is taken of
HIDDEN = -1e4  # an added mask hides what it pushes below this
_WIDE = 16  # numbers to a query: fewer need no scale
_LARGE = 2.0  # deviation of the logits; new ones that are divided by the root of their width have 1 at most

SOFTMAX = ("Softmax", "SafeSoftmax")


@dataclass(frozen=True, slots=True)
class Attention:
    logit_max: float | None
    entropy: float | None  # share of the largest possible
    unscaled: bool = False  # logits are plain products of queries and keys, and large


def read_attention(node: Node) -> Attention | None:
    """None when this node is no attention, or cannot be read without waiting."""
    name = operation(node)
    if name.startswith("ScaledDotProduct"):
        return _built_in(node)
    if name in SOFTMAX:
        return _by_hand(node)
    return None


def _built_in(node: Node) -> Attention | None:
    query, key = saved_tensor(node, "query"), saved_tensor(node, "key")
    if query is None or key is None or query.dim() != 4 or query.device.type != "cpu" or key.shape[1] == 0:
        return None
    heads, length, keys = query.shape[1], query.shape[2], key.shape[2]
    samples, chosen, rows = _chosen(query.shape[0], heads, length, keys)
    scale = saved(node, "scale")
    scale = float(scale) if isinstance(scale, (int, float)) else 1.0 / math.sqrt(query.shape[3])
    some_keys = key[:samples].repeat_interleave(heads // key.shape[1], dim=1) if key.shape[1] < heads else key[:samples]
    some = query[:samples][..., rows, :].flatten(0, 1)[:chosen].float()
    logits = some @ some_keys.flatten(0, 1)[:chosen].float().transpose(1, 2) * scale
    visible = torch.ones_like(logits, dtype=torch.bool)
    if saved(node, "is_causal"):
        visible &= torch.arange(keys)[None, :] <= rows[:, None]
    mask = saved_tensor(node, "attn_mask")
    if mask is not None:
        part = _part(mask, (query.shape[0], heads, length, keys), samples, chosen, rows)
        if part.dtype == torch.bool:
            visible &= part
        else:
            visible &= part > HIDDEN
            logits = logits + part.float()
    return Attention(_largest(logits, visible), _entropy(logits.masked_fill(~visible, -math.inf).softmax(-1), visible))


def _by_hand(node: Node) -> Attention | None:
    shares = saved_tensor(node, "result")
    if shares is None or shares.dim() not in (3, 4) or shares.device.type != "cpu" or shares.shape[-1] < 2:
        return None
    if signed(saved(node, "dim")) not in (-1, shares.dim() - 1):
        return None
    product = _product((node, 0))
    if product is None:
        return None
    shape = tuple(shares.shape) if shares.dim() == 4 else (shares.shape[0], 1, *shares.shape[1:])
    samples, chosen, rows = _chosen(*shape)
    part = _part(shares, shape, samples, chosen, rows).float()
    visible = _visible(part, product.mask, shape, (samples, chosen, rows))
    left, right = saved_tensor(product.node, product.names[0]), saved_tensor(product.node, product.names[1])
    logit_max, unscaled = None, False
    if left is not None and right is not None and (len(left), left.shape[1]) == (shape[0] * shape[1], shape[2]):
        logits = left[:chosen][:, rows].float() @ right[:chosen].float() * product.factor
        logit_max = _largest(logits, visible)
        plain = left.shape[-1] >= _WIDE and not product.scaled and all(map(_is_projection, edges(product.node)[-2:]))
        unscaled = plain and bool(logits[visible].std() > _LARGE)
    return Attention(logit_max, _entropy(part, visible), unscaled)


# -- the product behind a softmax ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Product:
    node: Node
    names: tuple[str, str]  # under which its two sides are saved
    factor: float
    scaled: bool  # by a constant or by anything learnt
    mask: torch.Tensor | None  # True: hidden


_PRODUCTS = {"Bmm": ("self", "mat2"), "Baddbmm": ("batch1", "batch2")}
_LINEAR = ("Addmm", "Mm")
_PASSED = SAME_VALUES | {"Add", "Sub", "Mul", "Div", "MaskedFill", "Where"}


def product_behind(softmax: Edge) -> Node | None:
    """The product of two activations that a softmax is taken of; None where it is no attention."""
    product = _product(softmax)
    return None if product is None else product.node


def _product(start: Edge) -> _Product | None:
    """The product of two activations that these logits come from; a softmax of anything else is no attention."""
    stack: list[tuple[Edge, float, bool, torch.Tensor | None]] = [
        (edge, 1.0, False, None) for edge in edges(start[0]) if edge is not None
    ]
    for _ in range(_STEPS):
        if not stack:
            return None
        (node, _), factor, scaled, mask = stack.pop()
        if is_leaf(node):
            continue
        name = operation(node)
        if name in _PRODUCTS:
            return _Product(node, _PRODUCTS[name], factor, scaled or name != "Bmm", mask)
        if name not in _PASSED:
            continue
        inputs = [edge for edge in edges(node) if edge is not None]
        scaled |= name in ("Mul", "Div")
        if name in ("Mul", "Div") and len(inputs) == 1:
            number = number_of(constant_factor(node))
            factor = math.nan if not number else factor * number if name == "Mul" else factor / number
        elif name == "MaskedFill":
            mask = saved_tensor(node, "mask")
        stack.extend((edge, factor, scaled, mask) for edge in reversed(inputs))
    return None


def _is_projection(side: Edge | None) -> bool:
    """Do these values come from a linear layer as they are, neither scaled nor normalised nor turned?"""
    made_by = producer(side, SAME_VALUES)
    return made_by is not None and not is_leaf(made_by[0]) and operation(made_by[0]) in _LINEAR


# -- a part of a tensor of (samples × heads × rows × keys) -----------------------------------------------------


def _chosen(samples: int, heads: int, rows: int, keys: int) -> tuple[int, int, torch.Tensor]:
    """How many samples and heads are looked at, and which rows."""
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
