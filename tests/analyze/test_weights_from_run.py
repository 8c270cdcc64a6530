"""The weights of a recorded run, against the model that was trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.detect.building import HEALTHY, Training

import undertow
from undertow.components.run_weights import NOT_RECORDED, weights_of_run
from undertow.schema import Health, RunFacts, RunStatus, Severity
from undertow.store.writer import RunWriter

MEASURED = {
    "weight_mean": 0.0,
    "weight_std": 0.1,
    "weight_min": -0.3,
    "weight_max": 0.3,
    "weight_zero_fraction": 0.25,
    "weight_drift": 0.5,
    "weight_cosine_to_start": 0.9,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[undertow.Run, torch.nn.Module, torch.nn.Module]:
    """The run, the model as it was, and as it is."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("run") / "run"

    def make() -> torch.nn.Sequential:
        return torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.LayerNorm(40), torch.nn.Linear(40, 5))

    model, start = make(), make()
    start.load_state_dict(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with undertow.watch(model, optimizer, run_dir=folder, every=1, quiet=True):
        for _ in range(40):
            inputs = torch.randn(16, 20)
            loss = (model(inputs) - inputs[:, :5]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return undertow.open_run(folder), start, model


def test_moments_are_those_of_the_model(trained: tuple[undertow.Run, torch.nn.Module, torch.nn.Module]) -> None:
    run, _, model = trained
    recorded, exact = run.weights(), undertow.weights(model)
    assert [tensor.path for tensor in recorded.tensors] == [tensor.path for tensor in exact.tensors]
    assert (recorded.format, recorded.parameter_count, recorded.bytes) == ("run", exact.parameter_count, exact.bytes)
    for one, other in zip(recorded.tensors, exact.tensors, strict=True):
        assert (one.kind, one.shape, one.dtype) == (other.kind, other.shape, other.dtype)
        for name in ("mean", "std", "minimum", "maximum", "norm"):
            assert getattr(one.moments, name) == pytest.approx(getattr(other.moments, name), rel=1e-4, abs=1e-7), name
        assert one.moments.kurtosis == pytest.approx(other.moments.kurtosis, rel=1e-2, abs=1e-3)
        assert one.moments.zero_count == other.moments.zero_count
        assert one.initialisation is not None
        assert other.initialisation is not None
        assert (one.initialisation.scale is None) is (other.initialisation.scale is None)
        if one.initialisation.scale is not None:
            assert one.initialisation.scale == pytest.approx(other.initialisation.scale, rel=1e-4)
    assert recorded.overall.std == pytest.approx(exact.overall.std, rel=1e-4)
    assert set(recorded.kinds) == set(exact.kinds)
    assert recorded.health == exact.health


def test_drift_is_that_since_the_start(
    trained: tuple[undertow.Run, torch.nn.Module, torch.nn.Module],
) -> None:
    run, start, model = trained
    recorded, exact = run.weights().drift, undertow.weights(model, start).drift
    assert recorded is not None
    assert exact is not None
    assert recorded.against == "before step 0"
    for one, other in zip(recorded.tensors, exact.tensors, strict=True):
        if one.path == "1.bias":  # of the normalisation: zero at the start
            assert (one.relative, other.relative) == (None, None)
            assert "zero at the start" in one.missing["relative"]
            continue
        assert one.relative == pytest.approx(other.relative, rel=0.15)
        assert one.difference_norm == pytest.approx(other.difference_norm, rel=0.15)
        assert one.cosine == pytest.approx(other.cosine, abs=0.15)
    assert recorded.relative == pytest.approx(exact.relative, rel=0.1)
    assert recorded.cosine == pytest.approx(exact.cosine, abs=0.1)


def test_what_a_run_does_not_record_is_said(trained: tuple[undertow.Run, torch.nn.Module, torch.nn.Module]) -> None:
    tensor = trained[0].weights().tensors[0]
    assert (tensor.spectrum, tensor.units, tensor.outliers, tensor.moments.entropy_bits) == (None, None, None, None)
    assert tensor.missing == dict.fromkeys(("entropy_bits", "outliers", "units", "spectrum"), NOT_RECORDED)
    drift = trained[0].weights().drift
    assert drift is not None
    assert set(drift.tensors[0].missing) == {"largest_change", "changed_fraction"}


def run_of(training: Training, folder: Path) -> undertow.Run:
    facts = RunFacts(undertow="0")
    writer = RunWriter(folder, facts)
    writer.set_layers(training.layers, training.graph)
    for frame in training.frames:
        assert writer.append(frame)
    facts.status = RunStatus.FINISHED
    writer.write_facts()
    writer.close()
    return undertow.open_run(folder)


def test_weights_that_turned_bad(tmp_path: Path) -> None:
    training = Training().run(5, **MEASURED)
    training.run(1, **(MEASURED | {"weight_nonfinite_count": {"second": 4.0}, "weight_norm": {"second": np.nan}}))
    report = run_of(training, tmp_path / "run").weights()
    assert report.health is Health.CRITICAL
    assert [(issue.code, issue.layers) for issue in report.issues] == [("NUM003", ("second.weight", "second.bias"))]
    bad = next(tensor for tensor in report.tensors if tensor.path == "second.weight")
    assert (bad.moments.nonfinite_count, bad.moments.nan_count, bad.moments.undivided_count) == (4, 0, 4)
    assert bad.moments.norm == pytest.approx(np.sqrt(60) * 0.1)
    assert report.drift is not None
    assert report.drift.severity is Severity.CRITICAL


def test_the_newest_measurement_of_each_weight_counts(tmp_path: Path) -> None:
    """Weights are not measured at every step, nor all at the same ones."""
    training = Training().run(3, **MEASURED).run(1, **(MEASURED | {"weight_mean": 7.0}), only=("head",))
    training.run(90, streams=("gradient",))
    report = run_of(training, tmp_path / "run").weights()
    means = {tensor.path: tensor.moments.mean for tensor in report.tensors}
    assert (means["head.weight"], means["first.weight"]) == (7.0, 0.0)
    assert report.notes[0] == "weights as measured after steps 2 to 3"
    assert report.overall.zero_count == 288 // 4


def test_runs_without_weights(tmp_path: Path) -> None:
    nothing = run_of(Training(), tmp_path / "empty").weights()
    assert (nothing.health, nothing.tensors, nothing.drift) == (None, (), None)
    assert nothing.notes == ("no weights were measured in this run",)
    gradients = run_of(Training().run(3, streams=("gradient",)), tmp_path / "gradients").weights()
    assert (gradients.health, len(gradients.skipped)) == (None, 8)
    once = weights_of_run(run_of(Training().run(1), tmp_path / "once"), [])
    assert once.tensors[0].missing["std"] == "it was not recorded in this run"
    assert once.tensors[0].moments.norm == HEALTHY["weight_norm"]
    assert once.drift is not None
    assert once.drift.missing["relative"] == "no weight was measured twice"
