"""What one row counts in each of the micro-batches of a step: the same everywhere, or more in small ones."""

import math
from dataclasses import dataclass, field

import torch

from undertow.probe.signals.terms import Term, find_terms
from undertow.schema import LossReduction

_MOST = 8  # micro-batches of a step that are read
_FEWEST = 3  # of two, one may be of another kind on purpose: labelled and unlabelled, new and replayed


@dataclass(slots=True)
class MicroBatches:
    """Those of the step that is under way."""

    _weights: list[float] = field(default_factory=list)
    _kind: tuple[float, int] | None = None
    _is_mixed: bool = False

    def note(self, root: torch.Tensor, loss_scale: int | None) -> None:
        if self._is_mixed or len(self._weights) >= _MOST:
            return
        terms, _ = find_terms(root, loss_scale)
        weight = _row_weight(terms[0]) if terms else None
        kind = (terms[0].kind, _columns(terms[0])) if terms else None
        self._is_mixed = weight is None or (self._kind is not None and kind != self._kind)
        self._kind = kind
        if weight is not None:
            self._weights.append(weight)

    def spread(self) -> float | None:
        """How many times as much a row of one micro-batch counts as one of another."""
        if self._is_mixed or len(self._weights) < _FEWEST:
            return None
        return max(self._weights) / min(self._weights)


def _row_weight(term: Term) -> float | None:
    if not 0 < abs(term.factor) < math.inf or term.reduction == LossReduction.NONE:
        return None
    rows = 1.0 if term.reduction == LossReduction.SUM else _rows(term)
    return abs(term.factor) / rows if rows else None


def _rows(term: Term) -> float:
    """What a mean was taken over: ignored labels do not count."""
    counted, target = term.value.tensor("total_weight"), term.value.tensor("target")
    if counted is not None and counted.numel() == 1 and counted.device.type == "cpu" and float(counted) > 0:
        return float(counted)
    if target is not None:
        return float(target.numel())
    return float(math.prod(term.value.shape)) if term.value.shape else 0.0


def _columns(term: Term) -> int:
    """Numbers to a row of what the loss was given: another one is another task."""
    shape = term.given.shape
    return 0 if shape is None or len(shape) < 2 else shape[1]
