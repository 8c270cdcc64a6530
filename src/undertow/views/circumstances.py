"""With what runs were started, and what of it was not the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

from undertow.run import Run

_OWN = ("name", "run_dir", "directory", "quiet", "disabled", "resume")  # settings that do not touch the training


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that was not the same when the runs were started; None: a run does not have it."""

    setting: str
    values: tuple[str | None, ...]


def differences_of(runs: Sequence[Run]) -> tuple[Difference, ...]:
    facts = [_flat(_circumstances(run)) for run in runs]
    names = dict.fromkeys(chain.from_iterable(facts))
    rows = [Difference(name, tuple(one.get(name) for one in facts)) for name in names]
    return tuple(row for row in rows if len(set(row.values)) > 1)


def _circumstances(run: Run) -> dict[str, Any]:
    facts, parameters = run.facts, run.layers.parameters
    return {
        "optimizer": facts.optimizers[0] if len(facts.optimizers) == 1 else facts.optimizers,
        "settings": {name: value for name, value in facts.settings.items() if name not in _OWN},
        "command": " ".join(facts.command),
        "layers": len(parameters),
        "parameters": sum(layer.parameter_count for layer in parameters),
        "device": facts.device,
        "torch": facts.torch,
        "python": facts.python,
        "undertow": facts.undertow,
        "host": facts.host,
    }


def _flat(data: object, path: str = "") -> dict[str, str]:
    """Nested data as text by path: `optimizer.groups.0.lr`."""
    if isinstance(data, Mapping):
        items: Iterable[tuple[object, object]] = cast("Mapping[object, object]", data).items()
    elif isinstance(data, list | tuple):
        items = enumerate(cast("Sequence[object]", data))
    else:
        return {path: f"{data:.6g}" if isinstance(data, float) else str(data)}
    found: dict[str, str] = {}
    for key, value in items:
        found |= _flat(value, f"{path}.{key}" if path else str(key))
    return found
