"""Where modules and parameters were made: seen while they are registered, or read from the classes that hold them."""

import inspect
import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from undertow.probe.source import statements
from undertow.probe.source.frames import OWN, Site, kind_of, sites_from, sites_outside
from undertow.probe.source.places import RawPlace

_MOST_MODULES = 20_000

Sites = tuple[Site, ...]


class Definitions:
    """Nothing is attached to any module: torch calls for all of them."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[weakref.ref[nn.Module], Sites]] = {}  # by id: the line that asked for it
        self._placed: dict[int, tuple[weakref.ref[nn.Module], Sites, str]] = {}  # the line that gave it to its parent
        self._parameters: dict[tuple[int, str], Sites] = {}
        self._handles: list[Any] = []

    def start(self) -> None:
        self._handles = [
            register_module_parameter_registration_hook(self._parameter_registered),
            register_module_module_registration_hook(self._module_registered),
        ]

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _parameter_registered(self, module: nn.Module, name: str, parameter: Any) -> None:
        try:
            if len(self._made) < _MOST_MODULES and parameter is not None:
                frame = sys._getframe(1)
                self._note_made(module, frame)
                inner = sites_from(frame)
                if inner and inner[:1] != self._made[id(module)][1][:1]:
                    self._parameters[id(module), name] = inner
        except Exception:  # whatever it is, the program goes on
            return

    def _module_registered(self, parent: nn.Module, name: str, child: Any) -> None:
        try:
            if len(self._made) < _MOST_MODULES and isinstance(child, nn.Module):
                frame = sys._getframe(1)
                self._note_made(parent, frame)
                self._placed[id(child)] = weakref.ref(child), sites_from(frame), name
        except Exception:
            return

    def _note_made(self, module: nn.Module, frame: Any) -> None:
        known = self._made.get(id(module))
        if known is None or known[0]() is not module:
            self._made[id(module)] = weakref.ref(module), sites_outside(frame, module)

    # -- asked for ----------------------------------------------------------------------------------------

    def places(self, modules: Iterable[tuple[str, nn.Module]], parents: dict[str, nn.Module]) -> list[RawPlace]:
        """One for every line, with all the layers that it defines."""
        by_line: dict[tuple[Site, int | None], RawPlace] = {}
        for path, module in modules:
            for name, sites, element in self._lines(path, module, parents):
                if sites:
                    place = by_line.setdefault((sites[0], element), RawPlace("definition", sites, [], element=element))
                    place.subjects = [*place.subjects, name]
        return list(by_line.values())

    def of(self, module: nn.Module) -> tuple[Sites, int | None]:
        """The line that made a module, and which argument of the call there it is."""
        made, placed = self._made.get(id(module)), self._placed.get(id(module))
        sites = made[1] if made is not None and made[0]() is module else ()
        if placed is None or placed[0]() is not module:
            return sites, None
        if sites and type(module) is not nn.Sequential and any(True for _ in module.parameters(recurse=False)):
            return sites, None
        number = int(placed[2]) if placed[2].isdigit() and not sites else None
        return sites or placed[1], number

    def _lines(
        self, path: str, module: nn.Module, parents: dict[str, nn.Module]
    ) -> Iterator[tuple[str, Sites, int | None]]:
        sites, element = self.of(module)
        if not sites:
            sites = _read_from_class(path, parents)
        yield path, sites, element
        for name, _ in module.named_parameters(recurse=False):
            own = self._parameters.get((id(module), name))
            if own:
                yield f"{path}.{name}".strip("."), own, None


def _read_from_class(path: str, parents: dict[str, nn.Module]) -> Sites:
    """Of a model that was made before anybody watched: the line of its class that says `self.name = …`."""
    parent, _, name = path.rpartition(".")
    while parent and parent not in parents:
        parent, _, name = parent.rpartition(".")
    owner = parents.get(parent)
    if owner is None:
        return ()
    for kind in type(owner).__mro__:
        code = getattr(kind.__dict__.get("__init__"), "__code__", None)
        if code is None or kind_of(code) != OWN:
            continue
        found = statements.assignment(code.co_filename, f"self.{name}", kind.__name__)
        if found is not None:
            last = found.end_lineno or found.lineno
            return (Site(code.co_filename, f"{kind.__qualname__}.__init__", found.lineno, last, -1, -1),)
    if not name.isdigit():
        return ()
    return _read_from_class(parent, parents)


def class_line(module: nn.Module) -> Site | None:
    """Where the class of a module of the user's begins."""
    code = getattr(type(module).forward, "__code__", None)
    if code is None or kind_of(code) != OWN:
        return None
    try:
        _, line = inspect.getsourcelines(type(module))
    except (OSError, TypeError):
        return None
    return Site(code.co_filename, type(module).__qualname__, line, line, -1, -1)


def storage_of(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return 0
