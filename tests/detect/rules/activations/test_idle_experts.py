"""ACT005 idle-experts."""

from __future__ import annotations

import math

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


@pytest.mark.parametrize(
    ("gate", "drift", "found"),
    [("router.2", 0.5, ["ACT005"]), ("router.2", 0.01, []), ("zz_head", 0.5, [])],
    ids=["never chosen", "hardly begun", "what has as many outputs comes behind"],
)
def test_experts_that_a_trained_gate_has_never_chosen(gate: str, drift: float, found: list[str]) -> None:
    parts = [f"experts.{number}:Linear" for number in range(4)]
    ordered = [*parts, f"{gate}:Linear"] if gate == "zz_head" else ["router.0:Linear", f"{gate}:Linear", *parts]
    training = stack(IdleExperts, *ordered)
    four = Layer(f"{gate}.weight", kind=LayerKind.WEIGHT, shape=(4, 8), parameter_count=32, group=gate,
                 module_type="Linear", order=training.layers[f"{gate}.weight"].order)  # fmt: skip
    layers = [*training.layers.parameters, *training.layers.modules]
    training.layers = LayerTable.of([four if one.path == four.path else one for one in layers])
    training.engine.set_layers(training.layers, training.graph)
    idle = [f"experts.{number}" for number in (1, 2, 3)]
    never = {"gradient_norm": dict.fromkeys(idle, math.nan), "gradient_state": dict.fromkeys(idle, 1.0)}
    training.run(40, **never, weight_drift=drift)
    assert training.codes() == found
    if found:
        finding = training.findings()[0]
        assert (finding.layers[0], finding.first_step, len(finding.layers)) == (gate, 0, 4)
