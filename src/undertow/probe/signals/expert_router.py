"""Gates: a softmax over the few outputs of a linear layer that weighs other modules' outputs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from undertow.probe.signals.attention import SOFTMAX
from undertow.probe.signals.nodes import (
    SAME_VALUES,
    Edge,
    Node,
    edges,
    first_rows,
    is_leaf,
    only_edge,
    operation,
    parameter_at,
    saved,
    saved_tensor,
    shape_of,
    upstream,
)

_MOST_OUTPUTS = 256
_CHOOSING = SAME_VALUES | {"Index", "Select", "Topk", "Max", "Gather", "Unbind", "ScatterAdd", "Scatter"}
_MASKING = frozenset({"Mul", "Sum"})
_TO_LINEAR = SAME_VALUES | {"Add", "Mul", "Div", "MaskedFill", "Topk"}


@dataclass(frozen=True, slots=True)
class Gate:
    linear: Node  # the operation that made the logits
    outputs: int
    load_max: float


def find_gates(nodes: Sequence[Node]) -> Iterator[Gate]:
    """The gates among these nodes, each once."""
    seen: set[Node] = set()
    for node in nodes:
        if operation(node) not in ("Mul", "Bmm"):
            continue
        sides = [edge for edge in edges(node) if edge is not None]
        if len(sides) != 2:
            continue
        for side, other in (sides, sides[::-1]):
            softmax, choice = _gating(side)
            if softmax is None or softmax in seen or shape_of(side) == shape_of(other):
                continue  # alike in shape: features are weighed one by one, not modules
            seen.add(softmax)
            gate = _gate(softmax, choice)
            if gate is not None:
                yield gate


def _gating(edge: Edge) -> tuple[Node | None, Node | None]:
    """The softmax whose result, or a choice of it, comes along this edge; and the `topk` that chose, if one did."""
    current: Edge | None = edge
    choice: Node | None = None
    mixed = False  # masked and summed: what is left of a choice for one expert, or an expectation of anything
    for _ in range(16):
        if current is None or is_leaf(current[0]):
            break
        name = operation(current[0])
        if name in SOFTMAX:
            return (None, None) if mixed and choice is None else (current[0], choice)
        if name == "Topk":
            choice = current[0]
        if name == "Div":  # chosen gates made to sum to 1 again
            current = edges(current[0])[0]
        elif name in _CHOOSING or name in _MASKING:
            mixed |= name in _MASKING
            current = only_edge(current[0])
        else:
            break
    return None, None


def _gate(softmax: Node, choice: Node | None) -> Gate | None:
    shares = saved_tensor(softmax, "result")
    if shares is None or shares.dim() < 2 or shares.device.type != "cpu":
        return None
    outputs, chosen = shares.shape[-1], None if choice is None else saved_tensor(choice, "indices")
    for node, _ in upstream(only_edge(softmax), _TO_LINEAR):
        name = operation(node)
        if name == "Topk":
            sizes, chosen = saved(node, "self_sym_sizes"), saved_tensor(node, "indices")
            if chosen is None or not isinstance(sizes, (tuple, list)):
                return None
            outputs = int(sizes[-1])
        elif name in ("Addmm", "Mm"):
            weight = parameter_at(node, 2 if name == "Addmm" else 1)
            if weight is None or weight.dim() != 2 or len(weight) != outputs or not 2 <= outputs <= _MOST_OUTPUTS:
                return None
            if chosen is None or chosen.shape[-1] >= outputs:
                chosen = first_rows(shares).argmax(-1, keepdim=True)
            return Gate(node, outputs, _load(first_rows(chosen), outputs))
    return None


def _load(chosen: torch.Tensor, outputs: int) -> float:
    """Of all rows, the share for which the busiest output comes first; or, where it is more, the share that is left
    when every choice of another output than the busiest ones, as many as are chosen to a row, is taken for a row.
    """
    rows = max(1, chosen[..., 0].numel())
    first = torch.bincount(chosen[..., 0].reshape(-1), minlength=outputs).max()
    every = torch.bincount(chosen.reshape(-1), minlength=outputs).topk(chosen.shape[-1]).values.sum()
    return max(float(first), rows - (chosen.numel() - float(every))) / rows
