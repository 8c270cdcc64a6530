"""What modules are to each other, and how large weights were before their first step."""

from __future__ import annotations

import numpy as np
import pytest
from tests.detect.stacks import stack

from undertow.detect.engine import FrameBatch, FrameView, LayerIndex
from undertow.detect.features.initial_weights import InitialWeights
from undertow.detect.features.matrices import Matrices
from undertow.detect.features.module_structure import NONE, ModuleStructure, structure_of
from undertow.detect.rules.activations.saturated import Saturated
from undertow.schema import Frame, Layer, LayerKind, LayerTable


def structure(*parts: str) -> tuple[ModuleStructure, dict[str, int]]:
    layers = stack(Saturated, *parts).layers
    return ModuleStructure(LayerIndex(layers)), {layer.path: layer.id for layer in layers.modules}


def test_who_comes_before_whom() -> None:
    body, ids = structure("a:Conv2d", "b:BatchNorm2d", "c:ReLU", "d:Linear", "e:Tanh")
    assert [body.layout.path(i) for i in body.sequence] == ["a", "b", "c", "d", "e"]
    assert (body.before(ids["b"]), body.behind(ids["b"]), body.behind(ids["e"])) == (ids["a"], ids["c"], NONE)
    assert (body.feeder(ids["c"]), body.source(ids["c"]), body.source(ids["a"])) == (ids["a"], ids["b"], NONE)
    assert body.is_normalised(ids["a"])
    assert not body.is_normalised(ids["d"])


def test_containers_do_no_work() -> None:
    layers = stack(Saturated, "block:Sequential", "block.0:Linear").layers
    body = structure_of(LayerIndex(layers))
    assert [body.layout.path(i) for i in body.sequence] == ["block.0"]


def test_the_last_function_of_each_model_is_not_hidden() -> None:
    """Of several models each is one leading component that no module has alone."""
    body, ids = structure("made.0:Linear", "made.1:Tanh", "judge.0:Linear", "judge.1:Tanh", "judge.2:Linear")
    assert [body.is_hidden(ids[path]) for path in ("made.0", "made.1", "judge.1", "judge.2")] == [
        False,
        False,
        True,
        False,
    ]


def test_fan_in_counts_what_an_output_sums() -> None:
    body, _ = structure("a:Linear", "b:Conv2d")
    layers = body.layout.layers
    assert [body.fan_in[layers[path].id] for path in ("a.weight", "b.weight")] == [8, 36]
    turned = Layer("c.weight", kind=layers["b.weight"].kind, shape=(4, 8, 3, 3), module_type="ConvTranspose2d")
    assert ModuleStructure(LayerIndex(LayerTable.of([turned]))).fan_in[0] == 36


def test_the_start_is_the_norm_before_the_first_measured_step() -> None:
    training = stack(Saturated, "a:Linear", "b:Linear")
    start = InitialWeights()
    start.grow(len(training.layers))
    first = training.frame(weight_norm=2.0, update_norm=0.5, update_ratio={"a.weight": 0.2, "b.weight": np.nan})

    def view_of(frame: Frame) -> FrameView:
        batch = FrameBatch(LayerIndex(training.layers))
        assert batch.take(frame)
        return batch.view(0)

    assert start.take(view_of(first))
    assert start.norm[training.layers["a.weight"].id] == pytest.approx(2.5)
    assert start.norm[training.layers["b.weight"].id] == 0  # no ratio to a weight of zero
    assert start.take(view_of(training.frame(weight_norm=9.0)))
    assert start.norm[training.layers["a.weight"].id] == pytest.approx(2.5)
    assert not start.take(view_of(training.frame(streams=("gradient",))))


def test_a_model_whose_modules_were_not_seen_to_run_yet_has_the_order_of_its_parameters() -> None:
    """As of a second training of the same run, that diverges before its modules are looked at."""
    layers: list[Layer] = []
    for order, (path, ran) in enumerate((("net", True), ("net_2", False))):
        layers.append(Layer(path, kind=LayerKind.MODULE, module_type="Linear", order=10 * order + 1 if ran else None))
        layers.append(Layer(f"{path}.weight", kind=LayerKind.WEIGHT, shape=(8, 8), parameter_count=64, group=path,
                            order=10 * order))  # fmt: skip
    layout = LayerIndex(LayerTable.of(layers))
    paths = [layout.path(int(i)) for i in Matrices(layout).ids]
    assert paths == ["net.weight", "net_2.weight"]
