"""Tensors as users hold them: a module, its named parameters, a state dict, a mapping, a list, or one array."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from undertow.schema.seeds.arrays import Floats, InputError, as_array

Pairs = list[tuple[str, Any]]
_WAY_OUT = "Give a module, its named_parameters(), a mapping of names to tensors, a list of tensors, or one tensor"


def named_tensors(given: Any, names: Iterable[str] | None = None) -> Pairs:
    """Names and tensors, as given: an array by itself, or a list of numbers, is one tensor, whatever its shape."""
    labels = None if names is None else [str(name) for name in names]
    pairs: Pairs = []
    if callable(getattr(given, "named_parameters", None)):
        pairs = list(given.named_parameters())
    elif isinstance(given, Mapping):
        pairs = list(cast("Mapping[str, Any]", given).items())
    else:
        items = _items(given)
        if items and all(isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str) for one in items):
            pairs = items
        else:
            labels = labels or [f"tensor {place}" for place in range(len(items))]
            if len(labels) != len(items):
                raise InputError(f"{len(items)} tensors but {len(labels)} names")
            pairs = list(zip(labels, items))
    found = [str(name) for name, _ in pairs]
    if len(set(found)) != len(found):
        raise InputError(f"layer {next(name for name in found if found.count(name) > 1)!r} is given twice")
    return list(zip(found, (value for _, value in pairs)))


def _items(given: Any) -> list[Any]:
    if isinstance(given, str | bytes) or not (hasattr(given, "__iter__") or hasattr(given, "__array__")):
        raise InputError(f"there are no tensors in {given!r}", way_out=_WAY_OUT)
    if hasattr(given, "shape") or hasattr(given, "detach"):
        return [given]
    items = list(given)
    return [items] if items and isinstance(items[0], int | float) else items


def named_arrays(given: Any, names: Iterable[str] | None = None) -> tuple[list[str], list[Floats]]:
    """The names, and every tensor as one long float64 array."""
    pairs = named_tensors(given, names)
    return [name for name, _ in pairs], [as_array(value, name).reshape(-1) for name, value in pairs]


def gradients(pairs: Pairs) -> Pairs:
    """The gradients of those that are parameters, and the others as they are; frozen parameters are left out."""
    found = [
        (name, value.grad if is_parameter(value) else value)
        for name, value in pairs
        if not is_parameter(value) or value.requires_grad or value.grad is not None
    ]
    if any(is_parameter(value) for _, value in pairs) and all(value is None for _, value in found):
        first = next(name for name, value in pairs if is_parameter(value))
        raise InputError(
            f"no parameter has a gradient, {first!r} among them",
            way_out="Call this after loss.backward() and before optimizer.zero_grad()",
        )
    return found


def is_parameter(value: Any) -> bool:
    """Weights, and no gradient: told without torch. A gradient asks for none itself."""
    named = any(kind.__name__ == "Parameter" for kind in type(value).__mro__)
    return hasattr(value, "requires_grad") and (named or bool(value.requires_grad and value.is_leaf))
