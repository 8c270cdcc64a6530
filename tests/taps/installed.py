"""What a watch puts into torch: found by comparing torch before and after, so that no tap can be forgotten."""

import sys
from collections.abc import Iterator
from typing import Any

from undertow.probe import taps

Place = tuple[Any, str]  # a module or a class, and the name of one of its attributes
Snapshot = dict[tuple[int, str], tuple[Any, Any, int]]


def _owners() -> Iterator[Any]:
    import torch.distributed.pipelining.stage  # noqa: F401  as a training that needs it does

    seen: set[int] = set()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "torch" and module is not None:
            inside = [value for value in vars(module).values() if issubclass(type(value), type)]
            for owner in (module, *inside):
                if id(owner) not in seen and str(getattr(owner, "__module__", name)).startswith("torch"):
                    seen.add(id(owner))
                    yield owner


def snapshot() -> Snapshot:
    """Every attribute with its owner; of tables of hooks also how many they hold."""
    return {
        (id(owner), name): (owner, value, len(value) if "_hooks" in name and hasattr(value, "__len__") else 0)
        for owner in _owners()
        for name, value in list(vars(owner).items())
        if name not in ("__dict__", "__weakref__", "__warningregistry__")
    }


def changed(before: Snapshot) -> set[Place]:
    """What is another function now, or a table of another length."""
    now = snapshot().items()
    known = [(owner, key[1], value, size, before[key]) for key, (owner, value, size) in now if key in before]
    return {
        (owner, name) for owner, name, value, size, (_, old, length) in known
        if size != length or (callable(value) and value is not old)
    }  # fmt: skip


def places() -> list[Place]:
    """Of every function that is another one while somebody listens."""
    before = snapshot()
    listener: Any = object()
    taps.add(listener)
    taps.install_late()
    found = changed(before)
    taps.remove(listener)
    functions = [place for place in found if callable(getattr(*place))]
    return sorted(functions, key=lambda place: (place[0].__name__, place[1]))
