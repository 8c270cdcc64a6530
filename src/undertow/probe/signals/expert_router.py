"""Gates: a softmax over the few outputs of a linear layer that weighs other modules' outputs."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from undertow.probe.signals.attention import SOFTMAX
from undertow.probe.signals.graph_values import NOTHING, SAME_VALUES, Node, Value, first_rows
from undertow.probe.signals.linear_layer import PRODUCTS, weight_of

_MOST_OUTPUTS = 256
_FAR = 16
_CHOOSING = SAME_VALUES | {"Index", "Select", "Topk", "Max", "Gather", "Unbind", "ScatterAdd", "Scatter"}
_MASKING = frozenset({"Mul", "Sum"})
_TO_LINEAR = SAME_VALUES | {"Add", "Mul", "Div", "MaskedFill", "Topk"}


class Gate(NamedTuple):
    linear: Value  # the logits
    outputs: int
    load_max: float


def find_gates(named: Sequence[tuple[str, Value]]) -> Iterator[Gate]:
    """The gates among these values, which come with their operations; each once."""
    seen: set[Node] = set()
    for name, value in named:
        sides = value.inputs if name in ("Mul", "Bmm") else []
        if len(sides) != 2:
            continue
        for side, other in (sides, sides[::-1]):
            softmax, choice = _gating(side)
            if not softmax or softmax.node in seen or side.shape == other.shape:
                continue  # alike in shape: features are weighed one by one, not modules
            seen.add(softmax.node)
            gate = _gate(softmax, choice)
            if gate is not None:
                yield gate


def _gating(value: Value) -> tuple[Value, Value]:
    """The softmax whose result, or a choice of it, this is; and the `topk` that chose, if one did."""
    choice = NOTHING
    mixed = picked = False  # masked and summed: what is left of a choice for one expert, or an expectation of anything
    for _ in range(_FAR):
        name = value.operation
        if name in SOFTMAX:
            return (NOTHING, NOTHING) if mixed and not (choice or picked) else (value, choice)
        picked |= name == "Max"
        if name == "Topk":
            choice = value
        if name == "Div":  # chosen gates made to sum to 1 again
            value = value.side(0)
        elif name in _CHOOSING or name in _MASKING:
            mixed |= name in _MASKING
            value = value.only
        else:
            break
    return NOTHING, NOTHING


def _gate(softmax: Value, choice: Value) -> Gate | None:
    shares = softmax.tensor("result")
    if shares is None or shares.dim() < 2 or shares.device.type != "cpu":
        return None
    outputs, chosen = shares.shape[-1], choice.tensor("indices")
    value = softmax.only
    for _ in range(_FAR):
        name = value.operation
        if name == "Topk":
            sizes, chosen = value.saved("self_sym_sizes"), value.tensor("indices")
            if chosen is None or not isinstance(sizes, (tuple, list)):
                return None
            outputs = int(sizes[-1])
        elif name in PRODUCTS:
            weight = weight_of(value)
            if weight is None or weight.dim() != 2 or len(weight) != outputs or not 2 <= outputs <= _MOST_OUTPUTS:
                return None
            if chosen is None or chosen.shape[-1] >= outputs:
                chosen = first_rows(shares).argmax(-1, keepdim=True)
            return Gate(value, outputs, _load(first_rows(chosen), outputs))
        if name not in _TO_LINEAR:
            return None
        value = value.only
    return None


def _load(chosen: torch.Tensor, outputs: int) -> float:
    """Of all rows, the share for which the busiest output comes first; or, where it is more, the share that is left
    when every choice of another output than the busiest ones, as many as are chosen to a row, is taken for a row.
    """
    rows = max(1, chosen[..., 0].numel())
    first = torch.bincount(chosen[..., 0].reshape(-1), minlength=outputs).max()
    every = torch.bincount(chosen.reshape(-1), minlength=outputs).topk(chosen.shape[-1]).values.sum()
    return max(float(first), rows - (chosen.numel() - float(every))) / rows
