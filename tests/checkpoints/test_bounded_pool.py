"""Several tensors at once: the same answers in the same order, within the memory of the largest."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

import undertow
from undertow.analyze.one_thread import one_thread
from undertow.checkpoints.bounded_pool import ALWAYS, in_turn


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_in_order_and_never_more_than_the_largest(workers: int) -> None:
    sizes = [times * ALWAYS for times in (1, 9, 2, 3, 4, 10, 1, 1, 1, 5)]
    lock = threading.Lock()
    under_way: list[int] = []
    most: list[tuple[int, int]] = []

    def work(place: int) -> int:
        with lock:
            under_way.append(sizes[place])
            most.append((len(under_way), sum(under_way)))
        threading.Event().wait(0.005)
        with lock:
            under_way.remove(sizes[place])
        return place * place

    assert list(in_turn(range(10), sizes.__getitem__, work, workers)) == [(place, place**2) for place in range(10)]
    assert max(count for count, _ in most) <= workers
    assert max(total for _, total in most) <= 10 * ALWAYS
    assert (max(count for count, _ in most) > 1) is (workers > 1)


def test_small_ones_need_not_wait_for_each_other() -> None:
    together = threading.Barrier(2, timeout=10)

    def work(_: int) -> None:
        together.wait()

    assert len(list(in_turn([ALWAYS // 2] * 2, int, work, 2))) == 2


def test_an_error_is_that_of_its_item_and_ends_the_work() -> None:
    done: list[int] = []

    def work(place: int) -> int:
        if place == 3:
            raise ValueError("tensor 3")
        done.append(place)
        return place

    with pytest.raises(ValueError, match="tensor 3"):
        list(in_turn(range(100), lambda _: 1, work, 2))
    assert len(done) < 100
    assert not [one for one in threading.enumerate() if one.name.startswith("undertow-weights")]


def threads() -> set[int]:
    return {one["num_threads"] for one in ThreadpoolController().select(user_api="blas").info()}


def test_threads_of_the_linear_algebra_are_given_back() -> None:
    blas = ThreadpoolController().select(user_api="blas")
    if not blas.lib_controllers:
        pytest.skip("the threads of this library for linear algebra cannot be limited")
    with blas.limit(limits=2):
        with one_thread() as held:
            assert held
            with one_thread():
                assert threads() == {1}
            assert threads() == {1}
        assert threads() == {2}
        with pytest.raises(KeyError), one_thread():
            raise KeyError
        assert threads() == {2}


def test_without_threadpoolctl_tensors_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    with one_thread() as held:
        assert not held
    assert undertow.weights({"a.weight": np.ones((3, 3))}).tensors


def test_workers_change_nothing() -> None:
    random = np.random.default_rng(0)
    now = {f"l{i}.weight": random.normal(0, 0.1, (40 + i, 300)).astype(np.float32) for i in range(6)}
    then = {name: value + np.float32(0.01) for name, value in now.items()}
    assert undertow.weights(now, then, workers=3) == undertow.weights(now, then, workers=1)


def test_small_ones_are_not_put_off_for_ever() -> None:
    """Larger ones go first, but only of the next few: whoever reads the results sees them come."""
    begun: list[int] = []

    def work(place: int) -> int:
        begun.append(place)
        return place

    sizes = [1, *[ALWAYS] * 100]
    turns = in_turn(range(101), sizes.__getitem__, work, 2)
    next(turns)
    assert 0 < begun.index(0) <= 8
    assert len(list(turns)) == 100
