"""All ranks measure the same steps, whatever their clocks say."""

from __future__ import annotations

from undertow.probe.distributed.shared_schedule import SharedGovernor
from undertow.probe.schedule import Plan


def _plans(governor: SharedGovernor, steps: range) -> list[Plan]:
    return [governor.plan(step) for step in steps]


def test_the_first_rank_decides_for_all() -> None:
    said: list[tuple[int, dict[str, int]]] = []
    first, other = SharedGovernor(None), SharedGovernor(None)
    first.announce = lambda step, intervals: said.append((step, intervals))
    for step in range(400):
        assert first.plan(step) == other.plan(step)
        cost = {"gradient": 0.05, "weight": 0.05, "activation": 0.05, "always": 0.0}
        first.spent(dict(cost), 0.3, first=step == 0)
        other.spent({name: seconds * 100 for name, seconds in cost.items()}, 30.0, first=step == 0)  # a slow machine
        for step_from, intervals in said:
            assert step_from > step  # it takes effect later, when all have heard of it
            other.agree(step_from, intervals)
        said.clear()
    later = _plans(first, range(200, 400))
    assert 0 < sum(plan.gradient for plan in later) < len(later) / 2


def test_the_first_steps_are_measured_on_all_ranks_whatever_they_cost() -> None:
    slow = SharedGovernor(None)
    for step in range(16):
        assert slow.plan(step).gradient
        slow.spent({"gradient": 100.0, "always": 0.0}, 101.0, first=step == 0)


def test_a_number_of_steps_that_was_given_is_kept() -> None:
    plans = _plans(SharedGovernor(3, activations=False), range(7))
    assert [plan.gradient for plan in plans] == [True, False, False, True, False, False, True]


def test_the_more_merging_costs_the_first_rank_the_more_rarely_all_measure() -> None:
    def measured(merging: float) -> int:
        first = SharedGovernor(None)
        first.announce = first.agree
        plans: list[Plan] = []
        for step in range(600):
            plans.append(first.plan(step))
            first.spent({"gradient": 0.001, "weight": 0.001, "always": 0.0}, 0.5, first=step == 0)
            if plans[-1].gradient and merging:
                first.merged(merging)
        return sum(plan.gradient for plan in plans[300:])

    assert measured(0.0) == 300
    assert measured(0.02) <= 150
    assert measured(0.2) <= 15
