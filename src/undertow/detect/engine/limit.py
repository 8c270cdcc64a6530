"""A number that a condition decides by, together with the reason for its size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class _Count:
    """Makes limits that count steps and are relative to nothing. How long a run will be is not known while it runs."""

    reason: str

    def __call__(self, value: float, why: str) -> Limit:
        limit = Limit(value, why)
        limit.fixed = self.reason
        return limit


class Limit(float):
    """Compares and computes as the number it is. `why` says what a healthy training shows, or what the number means;
    a count of steps that is relative to nothing has the reason in `fixed`.

    Limits are attributes of the condition's class, and `Condition.limits` lists them: a bare number in a comparison
    is a limit that nobody can look up. An instance has the plain number in their place. To numpy a subclass of float
    is a float64, beside which a rate of 0.9 in float32 is not "0.9 and more".
    """

    why: str
    fixed: str = ""

    chance: ClassVar = _Count("so many in a row are no chance, however long the run is")
    sample: ClassVar = _Count("a median, a spread or a trend takes as many values, however long the run is")
    start: ClassVar = _Count("what comes first comes first in a run of any length")
    learning: ClassVar = _Count("healthy trainings of the corpus have begun to learn, or have settled, by then")
    plan: ClassVar = _Count("longer than parts of a program take turns, or rest, on purpose; plans are not recorded")
    memory: ClassVar = _Count("about as long as optimizers, and the median of the latest losses, remember")
    arithmetic: ClassVar = _Count("follows from how a loss scaler, a schedule or an accumulation works")

    def __new__(cls, value: float, why: str) -> Limit:
        limit = super().__new__(cls, value)
        limit.why = why
        return limit

    def __get__(self, instance: object, owner: type | None = None) -> float:
        return self if instance is None else float(self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return getattr(ufunc, method)(*(float(one) if isinstance(one, Limit) else one for one in inputs), **options)

    def __repr__(self) -> str:
        return f"{float(self):g}"
