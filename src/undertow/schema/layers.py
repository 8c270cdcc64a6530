"""A layer is its path; it carries the facts that make the path meaningful."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, overload


class LayerKind(StrEnum):
    WEIGHT = "weight"
    BIAS = "bias"
    NORM_SCALE = "norm scale"
    NORM_SHIFT = "norm shift"
    EMBEDDING = "embedding"
    RECURRENT = "recurrent"
    PARAMETER = "parameter"  # a tensor owned by a module of no known type, or by none
    MODULE = "module"


class Layer(str):
    """A watched tensor or module: a string that is its path, with its facts attached.

    Being a string, a layer prints, sorts, compares and serialises as its path, so users may pass
    either one everywhere. `id` is its place in the run's layer table and never changes; `order`
    is its place in execution order (None until it has been seen executing). `group` is the module
    path that owns it. `shared_with` lists other paths of the same tensor (tied weights).
    """

    __slots__ = ("dtype", "group", "id", "kind", "module_type", "order", "parameter_count", "shape", "shared_with",
                 "trainable")  # fmt: skip

    def __new__(
        cls,
        path: str,
        id: int = 0,
        kind: LayerKind = LayerKind.PARAMETER,
        order: int | None = None,
        parameter_count: int = 0,
        group: str = "",
        shared_with: tuple[str, ...] = (),
        trainable: bool = True,
        shape: tuple[int, ...] = (),
        dtype: str = "",
        module_type: str = "",
    ) -> Layer:
        layer = super().__new__(cls, path)
        layer.id, layer.kind, layer.order = id, LayerKind(kind), order
        layer.parameter_count, layer.shape, layer.dtype = parameter_count, tuple(shape), dtype
        layer.group, layer.module_type = group, module_type
        layer.shared_with, layer.trainable = tuple(shared_with), trainable
        return layer

    @property
    def path(self) -> str:
        return str.__str__(self)

    @property
    def is_module(self) -> bool:
        return self.kind is LayerKind.MODULE

    def replace(self, *args: Any, **changes: Any) -> Any:
        """`replace(order=3)` gives a layer with other facts; `replace("a", "b")` is the string's."""
        if args:
            return super().replace(*args, **changes)
        return Layer(**{**self.to_dict(), **changes})

    def to_dict(self) -> dict[str, Any]:
        return {"path": self.path, **{name: getattr(self, name) for name in self.__slots__}}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Layer:
        """Unknown keys, written by a later version, are left out."""
        known = ("path", *cls.__slots__)
        return cls(**{name: record[name] for name in known if name in record})


@dataclass(frozen=True, slots=True)
class LayerTable(Sequence[Layer]):
    """All layers of a run, indexed by id or by path. Grows at the end only."""

    layers: tuple[Layer, ...] = ()
    _by_path: dict[str, Layer] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_path: dict[str, Layer] = {}
        for position, layer in enumerate(self.layers):
            if layer.id != position:
                raise ValueError(f"layer {layer.path!r} has id {layer.id} at position {position}")
            by_path[layer.path] = layer
            for alias in layer.shared_with:
                by_path.setdefault(alias, layer)
        object.__setattr__(self, "_by_path", by_path)

    @classmethod
    def of(cls, layers: Iterable[Layer]) -> LayerTable:
        """Number the given layers from 0 in the order they come."""
        return cls(tuple(layer.replace(id=i) for i, layer in enumerate(layers)))

    @property
    def paths(self) -> list[str]:
        return [layer.path for layer in self.layers]

    @property
    def parameters(self) -> list[Layer]:
        return [layer for layer in self.layers if not layer.is_module]

    @property
    def modules(self) -> list[Layer]:
        return [layer for layer in self.layers if layer.is_module]

    def in_execution_order(self) -> list[Layer]:
        """Executed layers first, in order; those never seen executing follow by id."""
        late = len(self.layers)
        return sorted(self.layers, key=lambda layer: (late if layer.order is None else layer.order, layer.id))

    def get(self, path: str) -> Layer | None:
        return self._by_path.get(path)

    def __contains__(self, item: object) -> bool:
        return str(item) in self._by_path

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    @overload
    def __getitem__(self, key: int | str) -> Layer: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[Layer, ...]: ...
    def __getitem__(self, key: int | str | slice) -> Layer | tuple[Layer, ...]:
        if isinstance(key, str):
            return self._by_path[key]
        return self.layers[key]
