"""Signals keep to their share of the budget, whatever a look costs."""

from __future__ import annotations

import pytest

from undertow.probe.signals.signal_collector import SignalCollector


def looks(cost: float, allowed: float, steps: int, behind: float = 0.0) -> list[int]:
    """The steps in which a governed collector looks at the loss, when every look costs this much."""
    collector = SignalCollector()
    collector.seconds_behind = behind
    chosen = []
    for step in range(steps):
        spent = 0.0
        if collector.wants_loss(planned=True, governed=True):
            collector.read_loss((), None)
            collector._has_read = True
            chosen.append(step)
            spent = cost
        collector.take(spent, allowed)
    return chosen


def test_the_first_steps_are_always_read():
    assert looks(cost=1.0, allowed=1e-3, steps=300)[:16] == list(range(16))


@pytest.mark.parametrize("cost", [1e-4, 1e-3, 1e-2])
def test_a_share_of_the_budget_is_kept(cost):
    later = [step for step in looks(cost, allowed=1e-3, steps=3000) if step >= 16]
    assert cost * len(later) <= 0.2 * 1e-3 * 3000 + cost
    assert cost * len(later) >= 0.5 * min(0.2 * 1e-3, cost) * 2900


def test_what_the_background_makes_of_a_look_counts():
    assert looks(cost=5e-4, allowed=1e-3, steps=500, behind=5e-4) == looks(cost=1e-3, allowed=1e-3, steps=500)


def test_cheap_looks_happen_in_every_step():
    assert looks(cost=1e-4, allowed=1e-3, steps=100) == list(range(100))


def test_an_interval_that_was_asked_for_leaves_room_for_some_readings():
    """Whatever they cost: the user has said that measuring may."""
    collector = SignalCollector()
    wanted = []
    for _ in range(100):
        unplanned = collector.wants_loss(planned=False, governed=False)
        assert len(wanted) < 16 or not unplanned
        wanted.append(collector.wants_loss(planned=True, governed=False))
        collector._has_read = True
        collector.take(1.0, 1e-3)
    assert not collector.wants_loss(planned=True, governed=True)
    assert all(wanted[:16])
    assert any(wanted[32:64])
    assert any(wanted[64:])


def test_another_number_of_backward_passes_than_ever_before_is_read_in_the_next_step():
    collector = SignalCollector()
    read = []
    for step in range(200):
        passes = 2 if step in (100, 101, 102, 150) else 1
        read += [step for _ in range(passes) if collector.wants_loss(planned=False, governed=False)][:1]
        collector.take(0.0, 1e-3)
    assert read == [*range(16), 101]
