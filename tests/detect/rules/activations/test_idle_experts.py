"""ACT005 idle-experts."""

from __future__ import annotations

import pytest
from tests.detect.stacks import stack

from undertow.detect.engine import LayerIndex
from undertow.detect.features.routers import Routers
from undertow.detect.rules.activations.idle_experts import IdleExperts
from undertow.schema import Layer, LayerGraph, LayerKind, LayerTable


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


def test_steps_that_were_skipped_say_nothing_of_experts() -> None:
    training = stack(IdleExperts, "router:Linear", *(f"experts.{number}:Linear" for number in range(4)))
    even = {"router_load_max": {"router": 0.4}, "router_outputs": {"router": 4.0}}
    silent = {f"experts.{number}": 0.0 for number in range(3)}
    training.run(5, **even).run(40, scalars={"step_skipped": 1.0}, gradient_norm=silent, **even)
    assert training.codes() == []


def test_a_gate_that_was_not_seen_to_choose_is_known_by_its_shape() -> None:
    """As on a device that is not waited for."""
    shapes = {"moe.router.weight": (4, 16), **{f"moe.experts.{number}.weight": (8, 16) for number in range(4)}}
    layers = [Layer(path.removesuffix(".weight"), kind=LayerKind.MODULE, module_type="Linear", order=place)
              for place, path in enumerate(shapes)]  # fmt: skip
    layers += [Layer(path, kind=LayerKind.WEIGHT, group=path.removesuffix(".weight"), shape=shape, trainable=True,
                     parameter_count=shape[0] * shape[1]) for path, shape in shapes.items()]  # fmt: skip
    layout = LayerIndex(LayerTable.of(layers), LayerGraph())
    assert {layout.path(gate): count for gate, count in Routers().gates(layout).items()} == {"moe.router": 4}
