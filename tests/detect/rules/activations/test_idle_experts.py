"""ACT005 idle-experts."""

from __future__ import annotations

import pytest
from tests.detect.stacks import stack

from undertow.detect.rules.activations.idle_experts import IdleExperts


@pytest.mark.parametrize(("idle", "found"), [(3, ["ACT005"]), (1, []), (4, [])])
def test_experts_that_get_no_gradient_any_more(idle: int, found: list[str]) -> None:
    training = stack(IdleExperts, "router:Linear", *(f"experts.{number}:Linear" for number in range(4)))
    even = {"router_load_max": {"router": 0.4}, "router_outputs": {"router": 4.0}}
    training.run(5, **even)
    silent = {f"experts.{number}": 0.0 for number in range(idle)}
    training.run(40, gradient_norm=silent, **even)
    assert training.codes() == found
    if found:
        finding = training.findings()[0]
        assert (finding.layers[0], finding.first_step, len(finding.layers)) == ("router", 5, 4)
