"""With what runs were started, and what of it was not the same."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePath
from typing import Any, cast

from undertow.run import Run

_OWN = ("name", "run_dir", "directory", "quiet", "disabled", "resume")  # settings that do not touch the training

_OWN_OPTIONS = ("--run-dir", "--name")


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that was not the same when the runs were started; None: a run does not have it."""

    setting: str
    values: tuple[str | None, ...]


def differences_of(runs: Sequence[Run]) -> tuple[Difference, ...]:
    facts = [_flat(_configuration(run)) for run in runs]
    names = dict.fromkeys(chain.from_iterable(facts))
    rows = [Difference(name, tuple(one.get(name) for one in facts)) for name in names]
    return tuple(row for row in rows if len(set(row.values)) > 1)


def _configuration(run: Run) -> dict[str, Any]:
    facts, parameters = run.facts, run.layers.parameters
    return {
        "optimizer": facts.optimizers[0] if len(facts.optimizers) == 1 else facts.optimizers,
        "settings": {name: value for name, value in facts.settings.items() if name not in _OWN},
        "command": _command(facts.command),
        "layers": len(parameters),
        "parameters": sum(layer.parameter_count for layer in parameters),
        "device": facts.device,
        "torch": facts.torch,
        "python": facts.python,
        "undertow": facts.undertow,
        "host": facts.host,
    }


def _command(words: Sequence[str]) -> str:
    """Without where the program lies, and what the run was called."""
    kept: list[str] = []
    skip = False
    for place, word in enumerate(words):
        if skip or word in _OWN_OPTIONS:
            skip = not skip and word in _OWN_OPTIONS
        elif not word.startswith(tuple(f"{option}=" for option in _OWN_OPTIONS)):
            kept.append(PurePath(word).name if place == 0 else word)
    return " ".join(kept)


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
