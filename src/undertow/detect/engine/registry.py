"""All conditions, collected from the files under `rules/`: there is no list to keep."""

import pkgutil
from functools import cache
from importlib import import_module

from undertow.detect.engine.condition import Condition

_RULES = "undertow.detect.rules"


@cache
def conditions() -> tuple[type[Condition], ...]:
    """By code and variant."""
    found: set[type[Condition]] = set()
    package = import_module(_RULES)
    for module in pkgutil.walk_packages(package.__path__, f"{_RULES}."):
        for value in vars(import_module(module.name)).values():
            if isinstance(value, type) and issubclass(value, Condition) and "variant" in vars(value):
                found.add(value)
    return tuple(sorted(found, key=lambda condition: (condition.code, condition.variant)))


@cache
def _by_place() -> dict[tuple[str, str], type[Condition]]:
    known = {(one.code, one.variant): one for one in conditions()}
    for one in conditions():
        for name in one.formerly.split():
            known.setdefault((one.code, name), one)
    return known


def condition_of(code: str, variant: str) -> type[Condition] | None:
    """The class that raises such findings; `variant` may be the name from an old journal. Where that is not known,
    the only condition of the code, if there is only one.
    """
    known = _by_place().get((code, variant))
    alike = conditions_of(code) if known is None else ()
    return alike[0] if len(alike) == 1 else known


@cache
def conditions_of(code: str) -> tuple[type[Condition], ...]:
    return tuple(one for one in conditions() if one.code == code)
