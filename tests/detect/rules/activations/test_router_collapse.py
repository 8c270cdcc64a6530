"""ACT005 router-collapse."""

from __future__ import annotations

import pytest
from tests.detect.stacks import stack

from undertow.detect.rules.activations.router_collapse import RouterCollapse


def test_everything_to_one() -> None:
    training = stack(RouterCollapse, "router:Linear", "expert:Linear", "idle:Linear")
    moved = {"weight_drift": {"router.weight": 0.2, "expert.weight": 0.3, "idle.weight": 0.0}}
    training.run(2, router_load_max={"router": 0.6}, router_outputs={"router": 4.0}, **moved)
    training.run(13, router_load_max={"router": 1.0}, router_outputs={"router": 4.0}, **moved)
    (finding,) = training.findings()
    assert (finding.code, finding.layers, finding.first_step) == ("ACT005", ("router",), 2)
    training.run(1, router_load_max={"router": 0.4}, router_outputs={"router": 4.0})
    assert not training.findings()[0].ongoing


def test_a_new_router_that_soon_spreads_its_rows_is_healthy() -> None:
    training = stack(RouterCollapse, "router:Linear", "expert:Linear")
    training.run(8, router_load_max=1.0, router_outputs=4.0, weight_drift=0.3)
    assert training.run(9, router_load_max=0.6, router_outputs=4.0, weight_drift=0.4).codes() == []


@pytest.mark.parametrize(("steps", "found"), [(40, []), (301, ["ACT005"])])
def test_a_model_that_has_hardly_moved_is_given_time(steps: int, found: list[str]) -> None:
    training = stack(RouterCollapse, "router:Linear", "expert:Linear")
    assert training.run(steps, router_load_max=1.0, router_outputs=4.0, weight_drift=0.02).codes() == found


def test_imbalance_is_not_collapse() -> None:
    training = stack(RouterCollapse, "router:Linear")
    assert training.run(19, router_load_max=0.9, router_outputs=8.0, weight_drift=0.3).codes() == []
