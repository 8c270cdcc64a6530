"""A number that a condition decides by, together with the reason for its size."""

from __future__ import annotations

from typing import Any


class Limit(float):
    """Compares and computes as the number it is. `why` says what a healthy training shows, or what the number means.

    Limits are attributes of the condition's class, and `Condition.limits` lists them: a bare number in a comparison
    is a limit that nobody can look up. An instance has the plain number in their place. To numpy a subclass of float
    is a float64, beside which a rate of 0.9 in float32 is not "0.9 and more".
    """

    why: str

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
