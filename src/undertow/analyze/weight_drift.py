"""How far the weights moved between two checkpoints: relative norm, cosine, largest change, how many changed."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median

import numpy as np

from undertow.checkpoints.elements import Elements
from undertow.schema.checkpoints import Drift, TensorDrift


@dataclass(frozen=True, slots=True)
class Movement:
    """One tensor's drift, and the sums that make up the drift of all."""

    drift: TensorDrift
    difference_square: float = 0.0
    then_square: float = 0.0
    now_square: float = 0.0
    product: float = 0.0
    is_finite: bool = True


def movement(path: str, kind: str, now: Elements, then: Elements) -> Movement:
    if now.shape != then.shape:
        reason = f"its shape was {list(then.shape)} and is {list(now.shape)}"
        return Movement(TensorDrift(path, kind, missing={"relative": reason, "cosine": reason}))
    difference = then_square = now_square = product = largest = 0.0
    changed = 0
    with np.errstate(over="ignore", invalid="ignore"):
        for a, b in zip(now.blocks(), then.blocks(), strict=True):
            new, old = a.values.astype(np.float64).reshape(-1), b.values.astype(np.float64).reshape(-1)
            step = new - old
            changed += int(np.count_nonzero(step))
            largest = max(largest, float(np.abs(step).max()))
            difference += float(np.dot(step, step))
            then_square += float(np.dot(old, old))
            now_square += float(np.dot(new, new))
            product += float(np.dot(new, old))
    if not np.isfinite((difference, then_square, now_square)).all():
        reason = "one of the two holds non-finite values"
        unknown = {"relative": reason, "cosine": reason}
        return Movement(TensorDrift(path, kind, missing=unknown), is_finite=False)
    missing: dict[str, str] = {}
    if then_square == 0:
        missing["relative"] = "the earlier tensor is zero"
    relative = sqrt(difference / then_square) if then_square > 0 else None
    record = TensorDrift(
        path,
        kind,
        relative=relative,
        cosine=_cosine(product, now_square, then_square, missing),
        difference_norm=sqrt(difference),
        largest_change=largest,
        changed_fraction=changed / now.raw.size if now.raw.size else 0.0,
        missing=missing,
    )
    return Movement(record, difference, then_square, now_square, product)


def whole_drift(
    against: str, movements: Sequence[Movement], only_here: Sequence[str] = (), only_there: Sequence[str] = ()
) -> Drift:
    missing: dict[str, str] = {}
    difference = sum(one.difference_square for one in movements)
    then, now = sum(one.then_square for one in movements), sum(one.now_square for one in movements)
    relative = sqrt(difference / then) if then > 0 else None
    if relative is None:
        missing["relative"] = "no tensor can be compared" if not movements else "the earlier weights are all zero"
    each = [one.drift.relative for one in movements if one.drift.relative is not None]
    return Drift(
        against=against,
        relative=relative,
        cosine=_cosine(sum(one.product for one in movements), now, then, missing),
        median_relative=median(each) if each else None,
        tensors=tuple(one.drift for one in movements),
        only_here=tuple(only_here),
        only_there=tuple(only_there),
        missing=missing,
    )


def _cosine(product: float, now: float, then: float, missing: dict[str, str]) -> float | None:
    if not (now > 0 and then > 0):
        missing["cosine"] = "a zero vector has no direction"
        return None
    return min(1.0, max(-1.0, product / sqrt(now) / sqrt(then)))
