"""What a program calls tensors that no model owns: variables, and places in dictionaries, objects and lists.

None of the program's own code runs meanwhile: a class may say anything of itself, or load data when it is asked.
"""

import sys
from collections.abc import Collection, Iterator, Sequence
from itertools import count, islice
from typing import Any

import torch
from torch import nn

from undertow.probe.discovery import attributes_of, free_name, scopes_of_the_user

_DEEPEST = 3  # objects in lists in objects
_MOST = 5_000  # objects visited
_MOST_OF_ONE = 1_000  # of one list or dictionary: such a long one is data
_KINDS = _ATTRIBUTE, _PLACE, _VARIABLE = range(3)  # of names, best first: a variable may be that of a loop


def names_of(tensors: Sequence[torch.Tensor], taken: Collection[str]) -> list[str]:
    """One for each, always the same for the same program: names of one kind, where all of them have one."""
    found = _found({id(tensor) for tensor in tensors})
    known = [found.get(id(tensor), {}) for tensor in tensors]
    shared = [kind for kind in (_ATTRIBUTE, _VARIABLE, _PLACE) if all(kind in names for names in known)]
    order = (*shared, *_KINDS)
    used, chosen = set(taken), list[str]()
    for place, names in enumerate(known):
        name = next((names[kind] for kind in order if kind in names), f"tensor{place}")
        chosen.append(free_name(name, used))
        used.add(chosen[-1])
    return chosen


def _found(wanted: set[int]) -> dict[int, dict[int, str]]:
    """By the id of a tensor, its first name of each kind."""
    found: dict[int, dict[int, str]] = {}
    for scope in scopes_of_the_user(sys._getframe()):
        waiting: list[tuple[str, Any]] = [("", scope)]
        visited = 0
        while waiting and visited < _MOST:
            path, holder = waiting.pop(0)
            for name, value in islice(_parts(holder), _MOST_OF_ONE if path else _MOST):
                visited += 1
                inner = f"{path}.{name}" if path else name
                if id(value) in wanted:
                    kind = _VARIABLE if not path else _PLACE if name.isdigit() else _ATTRIBUTE
                    names = found.setdefault(id(value), {})
                    name = name if issubclass(type(holder), dict) else inner
                    if kind not in names or _is_numbered(name) > _is_numbered(names[kind]):
                        names[kind] = name
                elif inner.count(".") < _DEEPEST - 1 and _is_holder(value):
                    waiting.append((inner, value))
    return found


def _is_numbered(name: str) -> bool:
    """A place in a list says more than the variable of a loop over it."""
    return any(part.isdigit() for part in name.split("."))


def _parts(holder: Any) -> Iterator[tuple[str, Any]]:
    kind = type(holder)
    if issubclass(kind, (list, tuple)):
        values = list.__iter__(holder) if issubclass(kind, list) else tuple.__iter__(holder)
        yield from zip(getattr(kind, "_fields", None) or map(str, count()), values)
        return
    named = holder if issubclass(kind, dict) else attributes_of(holder)
    named = list(islice(dict.items(named), _MOST))  # other threads may put in more
    yield from ((name, value) for name, value in named if type(name) is str and name[:1] != "_")


def _is_holder(value: Any) -> bool:
    kind = type(value)
    if issubclass(kind, (dict, list, tuple)):
        return True
    is_foreign = kind.__module__.partition(".")[0] in ("builtins", "torch", "numpy", "undertow")
    return not (is_foreign or issubclass(kind, (type, nn.Module))) and bool(attributes_of(value))
