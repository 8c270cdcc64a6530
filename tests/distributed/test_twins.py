"""The same training in several processes and in one: the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.distributed import programs, ranks

import undertow

ALIKE = ("data_parallel", "fully_sharded", "hybrid_sharded", "tensor_parallel", "sequence_parallel", "accumulated")
STREAMS = ("gradient_", "stepped_gradient_", "weight_", "update_")
# What needs several micro-batches, or is not read of parts of a tensor.
ELSEWHERE = ("gradient_noise_scale", "weight_row_spread", "weight_rows_unused")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    ranks.run(2, folder, *ALIKE, "parted", "poisoned", "stages")
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


@pytest.mark.slow
def test_four_ranks_measure_what_one_process_does(tmp_path: Path) -> None:
    ranks.run(4, tmp_path / "many", *ALIKE)
    for name in ALIKE:
        _expect_the_same(name, tmp_path / "many" / name, tmp_path / "one" / name)
