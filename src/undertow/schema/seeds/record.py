"""What all records of the components share: equality, plain data, JSON, and a text to read."""

import importlib
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import isfinite, isnan
from typing import Any, Self, TypeVar, cast, dataclass_transform, get_args, get_origin

import msgspec
import numpy as np

from undertow.schema.seeds.arrays import InputError
from undertow.schema.seeds.record_text import text_of

Kind = TypeVar("Kind")


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def record(kind: type[Kind]) -> type[Kind]:
    """A frozen dataclass with slots, compared as `Record` compares."""
    return dataclass(frozen=True, slots=True, eq=False)(kind)


class Record:
    """Base of every record. NaN equals NaN here, and a list equals an array of the same numbers."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data: dicts, lists, texts and numbers, NaN and infinity among them."""
        plain = msgspec.to_builtins(self, enc_hook=_plain)
        is_variant = Record not in type(self).__bases__  # as a Rust enum is written: its name, then its fields
        return {type(self).__name__: plain} if is_variant else plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        name = next(iter(plain), None) if len(plain) == 1 else None
        kind = {one.__name__: one for one in (cls, *cls.__subclasses__())}.get(str(name))
        try:
            return msgspec.convert(
                plain if kind is None else plain[str(name)], kind or cls, strict=False, dec_hook=_read
            )
        except msgspec.ValidationError as problem:
            raise InputError(f"this is no {cls.__name__}: {problem}") from None

    def to_json(self, *, indent: int | None = None) -> str:
        """Strict JSON. null is what is not available; "NaN", "Infinity" and "-Infinity" are numbers not finite."""
        return json_text(spelt(self.to_dict()), indent)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        try:
            plain = json.loads(text)
        except ValueError as problem:
            raise InputError(f"this is no JSON: {problem}") from None
        if not isinstance(plain, dict):
            raise InputError(f"this is no {cls.__name__}, but a JSON {type(plain).__name__}")
        return cls.from_dict(plain)  # pyright: ignore[reportUnknownArgumentType]

    @classmethod
    def given(cls, settings: Self | Mapping[str, Any] | None) -> Self:
        """Settings as a record, as a mapping of some of its fields, or none for all defaults."""
        if settings is None or isinstance(settings, cls):
            return settings or cls()
        legal = [one.name for one in fields(cls)]  # pyright: ignore[reportArgumentType]
        way_out = f"Give a {cls.__name__}, or a mapping with some of: {', '.join(legal)}"
        if not isinstance(settings, Mapping):
            raise InputError(f"the configuration is {settings!r}", way_out=way_out)
        unknown = next((name for name in settings if name not in legal), None)
        if unknown is not None:
            raise InputError(f"there is no setting {unknown!r}", way_out=way_out)
        return cls.from_dict(settings)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return type(self) is type(other) and _comparable(self) == _comparable(other)

    def __hash__(self) -> int:
        return hash(_comparable(self))

    def __str__(self) -> str:
        return text_of(self)


def shown_by(name: str) -> Callable[..., None]:
    """What draws for a component. Looked up when it is asked to show itself: nothing down here depends on it."""
    return getattr(importlib.import_module("undertow.show.arrays"), name)


def json_text(plain: Any, indent: int | None = None) -> str:
    """Numbers as the original spells them: 1e-8, 1e16, 0.00001."""
    try:
        text = msgspec.json.encode(plain)
    except UnicodeEncodeError:  # half a surrogate pair in a name, which only json can write: as an escape
        return json.dumps(plain, indent=indent)
    return (text if indent is None else msgspec.json.format(text, indent=indent)).decode()


def spelt(value: Any) -> Any:
    """Plain data in which numbers that JSON does not have are texts."""
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: spelt(one) for name, one in cast("dict[str, Any]", value).items()}
    return [spelt(one) for one in cast("list[Any]", value)] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    """What msgspec does not know: numbers and arrays of numpy, and what is a list but for its class."""
    return cast("Any", value).tolist() if isinstance(value, np.ndarray | np.generic) else list(value)


def _read(kind: Any, value: Any) -> Any:
    if get_origin(kind) is deque:
        return deque(msgspec.convert(value, list[get_args(kind)], strict=False))
    raise NotImplementedError


def _comparable(value: Any) -> Any:
    if isinstance(value, Record):
        return type(value).__name__, *(_comparable(getattr(value, one.name)) for one in fields(value))  # pyright: ignore[reportArgumentType]
    if isinstance(value, float) and isnan(value):
        return "NaN"
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return frozenset((name, _comparable(one)) for name, one in cast("Mapping[str, Any]", value).items())
    if isinstance(value, Sequence | deque | np.ndarray):
        return tuple(_comparable(one) for one in value)  # pyright: ignore[reportUnknownVariableType]
    return value
