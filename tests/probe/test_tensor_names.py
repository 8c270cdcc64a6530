"""Names of tensors that no model owns, from a program that does not notice that anybody asks."""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Iterator
from typing import Any, NoReturn

import torch

from undertow.probe.tensor_names import names_of

asked: list[str] = []


class Recorded:
    def __getattribute__(self, name: str) -> Any:
        asked.append(name)
        return object.__getattribute__(self, name)


class Unready:
    __slots__ = ()

    @property
    def __class__(self) -> NoReturn:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise RuntimeError("outside of any request")

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError("outside of any request")


class Stream(list[int]):
    def __iter__(self) -> Iterator[int]:
        asked.append("iter")
        return super().__iter__()

    def __len__(self) -> int:
        asked.append("len")
        return super().__len__()


class Loader(dict[str, int]):
    def items(self) -> Any:
        asked.append("items")
        return super().items()


def test_no_code_of_the_program_runs():
    others = [Recorded(), Unready(), Stream([1, 2]), Loader(one=1)]
    recorded, unready, stream, loader = others
    weight = torch.zeros(3)
    asked.clear()
    assert names_of([weight], ()) == ["weight"]
    assert not asked
    assert len(others) == len({id(one) for one in (recorded, unready, stream, loader)})


def test_places_in_tuples_dictionaries_and_objects():
    class Layer:
        def __init__(self) -> None:
            self.weight = torch.zeros(2)

    pair = namedtuple("pair", "left right")(torch.zeros(1), torch.zeros(1))
    by_name = {"a": torch.zeros(1)}
    layers = [Layer(), Layer()]
    assert names_of([pair.left, pair.right], ()) == ["pair.left", "pair.right"]
    assert names_of([by_name["a"]], ()) == ["a"]
    assert names_of([layer.weight for layer in layers], ()) == ["layers.0.weight", "layers.1.weight"]


def test_of_long_lists_little_is_looked_at():
    short, long = _calls_beside(10), _calls_beside(200_000)
    assert long < short + 50_000  # the tests' own frames are searched as well, and hold much


def _calls_beside(count: int) -> int:
    samples = [(number,) for number in range(count)]
    layers = [torch.zeros(1), torch.zeros(1)]
    calls = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        names = names_of(layers, ())
    finally:
        sys.setprofile(before)
    assert names == ["layers.0", "layers.1"]
    assert len(samples) == count
    return calls
