"""What is kept for every layer of a run: it grows with the table of layers, without a line in whoever keeps it."""

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

_Scalar = TypeVar("_Scalar", bound=np.generic)


class PerLayer:
    """Has a place for every layer. Its attributes that are such things themselves grow with it."""

    __slots__ = ()

    def grow(self, count: int) -> None:
        """Make room for layers up to `count`; what is known of the old ones stays."""
        for name, values in layer_values_of(type(self)).items():
            vars(self)[name] = grown(vars(self).get(name, np.zeros(0, values.dtype)), count, values.fill)
        for attribute in vars(self).values():
            if isinstance(attribute, PerLayer):
                attribute.grow(count)


class LayerValues(Generic[_Scalar]):
    """Declared in the body of a class: by `share = LayerValues(np.float64, 0.0)` every instance has an array of one
    number per layer under that name, which holds `fill` for layers that are new.
    """

    def __init__(self, dtype: type[_Scalar], fill: float | bool) -> None:
        self.dtype, self.fill = dtype, fill

    def __get__(self, instance: object, owner: type | None = None) -> NDArray[_Scalar]:
        return np.zeros(0, self.dtype)  # before `grow`; after it, the instance has an array of its own

    if TYPE_CHECKING:

        def __set__(self, instance: object, value: NDArray[_Scalar]) -> None: ...


def layer_values_of(kind: type) -> dict[str, LayerValues[Any]]:
    return {name: value for base in reversed(kind.__mro__) for name, value in vars(base).items()
            if isinstance(value, LayerValues)}  # fmt: skip


def grown(values: NDArray[_Scalar], count: int, fill: float | bool) -> NDArray[_Scalar]:
    """The array with room for `count` layers, new places set to `fill`."""
    if count <= len(values):
        return values
    out = np.full(count, fill, values.dtype)
    out[: len(values)] = values
    return out
