"""What the user asked for: argument, then UNDERTOW_* variable, then [tool.undertow], then default."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from undertow.errors import SettingError, write_stderr
from undertow.schema.addresses import address_of

ON_CRITICAL = ("warn", "ignore", "raise")
CHRONICLER = ("auto", "never", "always")
DEFAULT_DISK_BUDGET = 2_000_000_000
SINKS = ("tensorboard", "wandb", "mlflow", "trackio", "prometheus", "opentelemetry", "webhook", "slack")
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_YES = {"1", "true", "yes", "on"}
_NO = {"0", "false", "no", "off", ""}


@dataclass(frozen=True, slots=True)
class Settings:
    """Every argument of `watch`, and what only the environment decides. Build it with `resolve`."""

    run_dir: Path | str | None = None  # a folder, or an address such as s3://bucket/run
    name: str | None = None
    every: int | str = "auto"  # "auto", or a number of steps
    budget: float = 0.01  # share of the step time that measuring may cost
    budget_floor: float = 0.001  # seconds that it may cost in any case, however short a step is
    include: tuple[str, ...] | None = None  # globs over layer paths
    exclude: tuple[str, ...] | None = None
    activations: bool | int | str = "auto"  # "auto", yes, no, or every so many steps
    on_critical: str | Callable[[Any], object] = "warn"
    quiet: bool | None = None  # None: decide by the terminal
    directory: Path = Path("runs")
    disabled: bool = False
    disk_budget: int = DEFAULT_DISK_BUDGET
    resume: bool = False
    chronicler: str = "auto"  # whether a process of its own writes the run: once it is worth one, never, always
    command_line: bool = True  # whether the run keeps the command line, without its secrets
    source: bool = True  # whether the run keeps the lines of the program that findings point at
    xray: bool = False  # whether operations get their lines from the start, not only after an alarm
    shared: bool = False  # whether others may read the run, as far as the umask lets them
    sinks: tuple[Any, ...] = ()  # where else numbers and findings go: "tensorboard:DIR", or objects of the user's own

    @classmethod
    def resolve(cls, **arguments: Any) -> Settings:
        """The first of argument, variable, configuration file and default that is given; None is "not given"."""
        known = [field.name for field in fields(cls)]
        _refuse_unknown(arguments, known, "an argument")
        table, file = _configuration()
        _refuse_unknown(table, known, f"a key of [tool.undertow] in {file}")
        values: dict[str, Any] = {}
        for name in known:
            variable = "UNDERTOW_DIR" if name == "directory" else f"UNDERTOW_{name.upper()}"
            if arguments.get(name) is not None:
                values[name] = _checked(name, arguments[name], name)
            elif variable in os.environ and (os.environ[variable] or name in ("disabled", "quiet", "resume")):
                values[name] = _checked(name, os.environ[variable], variable)
            elif name == "source" and os.environ.get("UNDERTOW_NO_SOURCE"):
                values[name] = not _checked(name, os.environ["UNDERTOW_NO_SOURCE"], "UNDERTOW_NO_SOURCE")
            elif name in table:
                values[name] = _checked(name, table[name], f"{name} in {file}")
        return cls(**values)

    def to_record(self) -> dict[str, Any]:
        """Plain data for `run.json`."""
        record = asdict(replace(self, sinks=()))
        record["sinks"] = [kind_of_sink(sink) for sink in self.sinks]  # addresses may hold secrets
        for name in ("run_dir", "directory"):
            record[name] = None if record[name] is None else str(record[name])
        if callable(self.on_critical):
            record["on_critical"] = "a function"
        return record


def kind_of_sink(sink: Any) -> str:
    """`tensorboard` for `tensorboard:logs`."""
    return sink.partition(":")[0] if isinstance(sink, str) else type(sink).__name__


def _refuse_unknown(given: Iterable[str], known: list[str], place: str) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"Did you mean {near[0]!r}?" if near else "Settings are: " + ", ".join(known)
            raise SettingError(f"{name!r} is not {place} that Undertow knows", way_out=hint)


def _configuration() -> tuple[dict[str, Any], Path | None]:
    """The [tool.undertow] table of the nearest pyproject.toml at or above the working folder."""
    try:
        start = Path.cwd()
    except OSError:  # it was deleted: nothing is above it
        return {}, None
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if not file.is_file():
            continue
        try:
            document = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            # Somebody else's broken file must not stop a training; ours in it is lost, so say so.
            write_stderr(f"undertow: skipped {file}, which is not valid TOML: {problem}")
            return {}, file
        tools: Any = document.get("tool", {})
        is_table = isinstance(tools, dict)
        table: Any = cast(dict[str, Any], tools).get("undertow", {}) if is_table else tools
        if not isinstance(table, dict):
            name = "tool.undertow" if is_table else "tool"
            raise SettingError(f"{name} in {file} is {table!r}", way_out="Make it a table: [tool.undertow]")
        return cast(dict[str, Any], table), file
    return {}, None


def _checked(name: str, value: Any, source: str) -> Any:
    def refuse(legal: str) -> SettingError:
        return SettingError(f"{source} is {value!r}", way_out=f"Use {legal}")

    return _CHECKS[name](value, refuse)


Refusal = Callable[[str], SettingError]


def _every(value: Any, refuse: Refusal) -> int | str:
    if value == "auto":
        return "auto"
    number = _whole(value)
    if number is None or number < 1:
        raise refuse('"auto", or a whole number of steps of at least 1 (1 measures every step)')
    return number


def _activations(value: Any, refuse: Refusal) -> bool | int | str:
    if value == "auto" or isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in (_YES | _NO) - {"1"}:
        return value.strip().lower() in _YES
    number = _whole(value)
    if number is None or number < 1:
        raise refuse('"auto", true, false, or a whole number of steps of at least 1')
    return number


def _budget(value: Any, refuse: Refusal) -> float:
    legal = "a share of the step time above 0 and at most 1, such as 0.01 for one per cent"
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise refuse(legal) from None
    if isinstance(value, bool) or not 0 < number <= 1:
        raise refuse(legal)
    return number


def _budget_floor(value: Any, refuse: Refusal) -> float:
    legal = "seconds of a step, from 0 to 1, such as 0.0002 for a fifth of a millisecond"
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise refuse(legal) from None
    if isinstance(value, bool) or not 0 <= number <= 1:
        raise refuse(legal)
    return number


def _globs(value: Any, refuse: Refusal) -> tuple[str, ...]:
    legal = 'one glob over layer paths or several, such as "blocks.*.attn.*" or ["head.*", "*.bias"]'
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise refuse(legal)
    items = list(cast(Iterable[Any], value))
    if not all(isinstance(item, str) for item in items):
        raise refuse(legal)
    globs = tuple(item.strip() for item in cast(list[str], items) if item.strip())
    if not globs:
        raise refuse(legal)
    return globs


def _on_critical(value: Any, refuse: Refusal) -> str | Callable[[Any], object]:
    if callable(value) or value in ON_CRITICAL:
        return value
    raise refuse(", ".join(f'"{word}"' for word in ON_CRITICAL) + ", or a function of one Finding")


def _chronicler(value: Any, refuse: Refusal) -> str:
    if value in CHRONICLER:
        return value
    raise refuse(", ".join(f'"{word}"' for word in CHRONICLER))


def _truth(value: Any, refuse: Refusal) -> bool:
    if isinstance(value, (bool, int)) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.strip().lower() in _YES | _NO:
        return value.strip().lower() in _YES
    raise refuse("1 or 0 (also true, false, yes, no, on, off)")


def _path(value: Any, refuse: Refusal) -> Path:
    if isinstance(value, (str, os.PathLike)) and str(cast(Any, value)):
        return Path(cast(Any, value)).expanduser()
    raise refuse("the path of a folder")


def _place(value: Any, refuse: Refusal) -> Path | str:
    address = address_of(cast(Any, value)) if isinstance(value, (str, os.PathLike)) else None
    return address or _path(value, refuse)


def _directory(value: Any, refuse: Refusal) -> Path:
    path = _path(value, refuse)
    if address_of(value) is not None:
        raise refuse("a folder on this machine; a run goes to an address with run_dir")
    return path


def _text(value: Any, refuse: Refusal) -> str:
    if isinstance(value, str) and value.strip() and value.isprintable():
        return value
    raise refuse("a short printable name")


def _bytes(value: Any, refuse: Refusal) -> int:
    legal = "a number of bytes, or a size such as 500MB or 2GB"
    text = str(value).strip().upper().replace(" ", "")
    number = text.rstrip("KMGTB")
    try:
        size = int(float(number) * _UNITS[text[len(number) :]])
    except (KeyError, ValueError, OverflowError):
        raise refuse(legal) from None
    if isinstance(value, bool) or size < 1_000_000:
        raise refuse(legal + ", at least 1MB")
    return size


def _sinks(value: Any, refuse: Refusal) -> tuple[Any, ...]:
    given: Any = value.replace(",", " ").split() if isinstance(value, str) else value
    sinks = list(cast(Iterable[Any], given)) if isinstance(given, (list, tuple)) else [given]
    for sink in sinks:
        kind, _, target = sink.partition(":") if isinstance(sink, str) else ("", "", "")
        if not isinstance(sink, str):
            fits = all(callable(getattr(sink, name, None)) for name in ("numbers", "finding", "close"))
        elif kind in ("webhook", "slack"):
            fits = target.startswith(("http://", "https://"))
        elif kind == "prometheus":
            fits = not target or 0 < (_whole(target.rpartition(":")[2]) or 0) < 65536
        else:
            fits = kind in SINKS
        if not fits:
            example = 'such as "tensorboard", "tensorboard:logs", "prometheus:9464" or "slack:https://…"'
            raise refuse(f"{', '.join(SINKS)}, each with what it goes to, {example}")
    return tuple(sinks)


def _whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if isinstance(value, str) or number == value else None


_CHECKS: dict[str, Callable[[Any, Refusal], Any]] = {
    "run_dir": _place,
    "name": _text,
    "every": _every,
    "budget": _budget,
    "budget_floor": _budget_floor,
    "include": _globs,
    "exclude": _globs,
    "activations": _activations,
    "on_critical": _on_critical,
    "quiet": _truth,
    "directory": _directory,
    "disabled": _truth,
    "disk_budget": _bytes,
    "resume": _truth,
    "chronicler": _chronicler,
    "command_line": _truth,
    "source": _truth,
    "xray": _truth,
    "shared": _truth,
    "sinks": _sinks,
}
