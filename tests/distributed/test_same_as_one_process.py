"""The same training in several processes and in one: the same numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.distributed import programs, ranks

import undertow

ALIKE = (
    "data_parallel", "fully_sharded", "large_scale", "flattened", "flattened_passes", "sharded_branches",
    "hybrid_sharded", "tensor_parallel", "sequence_parallel", "accumulated", "sharded_accumulated",
    "sharded_unsynced",
)  # fmt: skip
STREAMS = ("gradient_", "stepped_gradient_", "weight_", "update_")
# What needs several micro-batches, or is not read of parts of a tensor.
ELSEWHERE = ("gradient_noise_scale", "weight_row_spread", "weight_rows_unused")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    ranks.run(
        2,
        folder,
        *ALIKE,
        "flat_units",
        "untouched",
        "untouched_flattened",
        "untouched_sharded",
        "parted",
        "poisoned",
        "stages",
        "pipeline",
    )
    return folder


def _order(run: undertow.Run) -> list[str]:
    return [layer.path for layer in run.layers.in_execution_order() if not layer.is_module]


def _expect_the_same(name: str, many: Path, one: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        programs.PROGRAMS[name](one)
    finally:
        torch.set_num_threads(threads)
    expected, found = undertow.open_run(one), undertow.open_run(many)
    assert found.layers.paths == expected.layers.paths
    assert _order(found) == _order(expected)
    # Shares along connections are not measured on several ranks, and the graph says so.
    assert replace(found.graph, connections=(), unmeasured="") == replace(expected.graph, connections=())
    assert found.graph.edges
    assert found.steps.tolist() == expected.steps.tolist()
    assert found.status == "finished"
    np.testing.assert_allclose(found.scalars("loss"), expected.scalars("loss"), rtol=1e-5)
    np.testing.assert_allclose(found.scalars("clip_coefficient"), expected.scalars("clip_coefficient"), rtol=1e-4)
    compared = 0
    for quantity in expected.quantities:
        if quantity.startswith(STREAMS) and quantity not in ELSEWHERE:
            truth, value = expected.matrix(quantity), found.matrix(quantity)
            scale = np.nanmax(np.abs(truth[np.isfinite(truth)]), initial=0.0)
            np.testing.assert_allclose(value, truth, rtol=2e-3, atol=1e-4 * scale, err_msg=quantity)
            compared += 1
    assert compared > 50


@pytest.mark.parametrize("name", ALIKE)
def test_two_ranks_measure_what_one_process_does(name: str, trained: Path, tmp_path: Path) -> None:
    _expect_the_same(name, trained / name, tmp_path / "one")


@pytest.mark.parametrize("name", ALIKE)
def test_healthy_ranks_give_no_alarm(name: str, trained: Path) -> None:
    assert not [one for one in undertow.open_run(trained / name).diagnose().findings if one.code.startswith("DST")]


SHORT = ("0.bias", "2.weight", "2.bias", "3.bias")  # of no more elements than a folded sketch has: exact


def _noise(inputs: torch.Tensor, labels: torch.Tensor, factor: float, width: int = 40) -> list[float]:
    """From the gradients of both halves of a batch."""
    model = programs.network(width)
    parameters = [dict(model.named_parameters())[path] for path in SHORT]
    halves = [
        torch.autograd.grad(factor * torch.nn.functional.cross_entropy(model(some), wanted), parameters)
        for some, wanted in zip(inputs.chunk(2), labels.chunk(2), strict=True)
    ]
    noise: list[float] = []
    for one, other in zip(*halves, strict=True):
        variance = float((one.double() - other).square().sum()) / 2
        signal = float(((one.double() + other) / 2).square().sum()) - variance / 2
        noise.append(variance / signal if signal > 0 else np.inf)
    return noise


def test_noise_comes_from_the_gradients_of_each_rank(trained: Path) -> None:
    run = undertow.open_run(trained / "data_parallel")
    expected = _noise(*programs.batches()[0], 1.0)
    assert [run.series("gradient_noise_scale", path)[0] for path in SHORT] == pytest.approx(expected, rel=1e-3)
    assert run.scalars("gradient_batches")[0] == 2.0


def test_noise_under_accumulation_comes_from_passes_before_the_exchange(trained: Path) -> None:
    run = undertow.open_run(trained / "accumulated")
    inputs, labels = programs.batches()[0]
    expected = _noise(inputs[:4], labels[:4], 0.5)
    assert np.isfinite(expected).all()
    assert [run.series("gradient_noise_scale", path)[0] for path in SHORT] == pytest.approx(expected, rel=1e-3)
    assert run.scalars("gradient_batches").tolist() == [4.0] * 6


@pytest.mark.parametrize("name", ["fully_sharded", "hybrid_sharded"])
def test_noise_of_a_sharded_model_comes_from_the_gradients_before_they_are_scattered(name: str, trained: Path) -> None:
    run = undertow.open_run(trained / name)
    expected = _noise(*programs.batches()[0], 1.0, width=41)
    assert [run.series("gradient_noise_scale", path)[0] for path in SHORT] == pytest.approx(expected, rel=1e-3)
    assert run.scalars("gradient_batches")[0] == 2.0
    assert np.isnan(run.series("gradient_noise_scale", "0.bias")[1:]).all()  # every eighth measured step


def test_noise_of_sharded_passes_that_are_exchanged_is_that_between_passes(trained: Path, tmp_path: Path) -> None:
    programs.sharded_accumulated(tmp_path / "one")
    run, twin = undertow.open_run(trained / "sharded_accumulated"), undertow.open_run(tmp_path / "one")
    noise, expected = run.matrix("gradient_noise_scale"), twin.matrix("gradient_noise_scale")
    assert np.isfinite(expected).any()
    np.testing.assert_allclose(noise, expected, rtol=1e-3)
    assert "gradient_batches" not in run.scalar_names or np.isnan(run.scalars("gradient_batches")).all()


def test_noise_of_sharded_passes_that_are_not_exchanged_is_that_between_ranks(trained: Path) -> None:
    run = undertow.open_run(trained / "sharded_unsynced")
    inputs, labels = programs.batches()[0]
    expected = _noise(inputs[:4], labels[:4], 0.5)
    assert [run.series("gradient_noise_scale", path)[0] for path in SHORT] == pytest.approx(expected, rel=1e-3)
    assert run.scalars("gradient_batches")[0] == 4.0


def test_flat_tensors_without_their_parameters_are_measured_as_what_they_hold(trained: Path, tmp_path: Path) -> None:
    programs.flat_units(tmp_path / "one")
    run, twin = undertow.open_run(trained / "flat_units"), undertow.open_run(tmp_path / "one")
    assert [layer.path for layer in run.layers if not layer.is_module] == [
        "_flat_param",
        "0._flat_param",
        "3._flat_param",
    ]
    for unit, members in (("_flat_param", "2."), ("0._flat_param", "0."), ("3._flat_param", "3.")):
        inside = [layer.path for layer in twin.layers if not layer.is_module and layer.path.startswith(members)]
        assert run.layers[unit].parameter_count == sum(twin.layers[path].parameter_count for path in inside)
        for quantity in ("gradient_norm", "stepped_gradient_norm", "weight_norm"):
            expected = np.sqrt(sum(np.square(twin.series(quantity, path)) for path in inside))
            np.testing.assert_allclose(run.series(quantity, unit), expected, rtol=1e-4)
    assert run.graph.edges


def test_passes_of_flat_tensors_that_are_not_exchanged_say_nothing_of_noise(trained: Path) -> None:
    run = undertow.open_run(trained / "flattened_passes")
    assert np.isnan(run.matrix("gradient_noise_scale")).all()
    assert run.scalars("backward_count").tolist() == [2.0] * 6


def test_a_tensor_that_is_not_averaged_is_found(trained: Path) -> None:
    (found,) = [one for one in undertow.open_run(trained / "parted").diagnose().findings if one.code == "DST001"]
    assert found.layers == ("3.weight",)
    assert "rank 1" in found.summary
    assert found.detected_step <= 4


def test_the_rank_with_bad_data_is_named(trained: Path) -> None:
    findings = undertow.open_run(trained / "poisoned").diagnose().findings
    assert findings[0].code == "DST002"
    assert findings[0].first_step == 5
    assert "Rank 1" in findings[0].summary


def test_stages_with_the_same_names_are_different_layers(trained: Path) -> None:
    run = undertow.open_run(trained / "stages")
    assert [layer for layer in run.layers.paths if layer.endswith("weight")] == ["0.weight", "rank1.0.weight"]
    assert np.isfinite(run.series("gradient_norm", "rank1.0.weight")).all()
    assert np.isfinite(run.scalars("loss")).all()
    assert not [one for one in run.diagnose().findings if one.code == "DST001"]


def test_stages_of_a_pipeline_are_one_model(trained: Path, tmp_path: Path) -> None:
    """Its micro-batches are averaged behind the backward passes, and only its last stage knows a loss."""
    programs.pipeline(tmp_path / "one")
    run, twin = undertow.open_run(trained / "pipeline"), undertow.open_run(tmp_path / "one")
    np.testing.assert_allclose(run.scalars("loss"), twin.scalars("loss"), rtol=1e-5)
    assert _order(run) == _order(twin)
    assert run.scalars("backward_count").tolist() == [4.0] * 6
    assert run.scalars("clip_coefficient").tolist() == [1.0] * 6
    for path in _order(twin):
        for quantity in ("gradient_norm", "stepped_gradient_norm", "gradient_mean", "weight_norm", "update_ratio"):
            np.testing.assert_allclose(run.series(quantity, path), twin.series(quantity, path), rtol=1e-3, atol=1e-6)


def test_what_the_optimizer_keeps_of_shards_is_read(trained: Path) -> None:
    run = undertow.open_run(trained / "fully_sharded")
    assert run.series("optimizer_rate", "0.weight") == pytest.approx([0.01] * 6)
    assert run.series("optimizer_step_count", "0.weight").tolist() == [1, 2, 3, 4, 5, 6]
    assert np.isfinite(run.series("optimizer_eps_ratio", "0.weight")).all()


def test_a_sharded_training_is_not_changed_by_looking_at_gradients_before_they_are_scattered(trained: Path) -> None:
    """The program itself compares weights with those of a training nobody watches."""
    run = undertow.open_run(trained / "untouched_sharded")
    assert run.series("gradient_noise_scale", "0.bias")[0] > 0  # it was looked at
    assert np.isfinite(run.series("weight_norm", "0.weight")[:8]).all()


def test_ranks_measure_the_same_steps_by_budget(trained: Path) -> None:
    run = undertow.open_run(trained / "untouched")
    assert run.scalars("ranks").tolist() == [2.0] * 24
    measured = np.isfinite(run.series("rank_weight_distance", "0.weight"))
    assert measured.tolist() == np.isfinite(run.series("weight_norm", "0.weight")).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("branches", ["", "2"])
def test_four_ranks_measure_what_one_process_does(
    branches: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All send to the first one, or the last two by way of the third."""
    monkeypatch.setenv("BRANCHES", branches)
    names = (*ALIKE, "mixed_mesh")
    ranks.run(4, tmp_path / "many", *names)
    for name in names:
        _expect_the_same(name, tmp_path / "many" / name, tmp_path / "one" / name)
