"""`undertow.weights`: what it says of sick and healthy weights, and of two checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import undertow
from undertow.checkpoints import UnreadableCheckpointError
from undertow.schema import Health, Severity
from undertow.schema.checkpoints import WeightReport


def trained(seed: int = 0) -> torch.nn.Sequential:
    """Moved away from its initialisation, and otherwise in order."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Embedding(200, 32), torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 96)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * parameter.abs().mean() * torch.randn_like(parameter) + 0.01
        model[0].weight *= 0.3
    return model


def codes(report: WeightReport) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(issue.code, str(issue.severity), issue.layers) for issue in report.issues]


def test_the_attribute_is_the_function() -> None:
    assert callable(undertow.weights)
    assert undertow.weights({"w": np.eye(3)}).health is Health.HEALTHY


def test_a_trained_model_is_healthy() -> None:
    report = undertow.weights(trained())
    assert codes(report) == []
    assert report.health is Health.HEALTHY
    assert report.parameter_count == sum(parameter.numel() for parameter in trained().parameters())
    assert set(report.kinds) == {"embedding", "weight", "bias", "norm scale", "norm shift"}
    everything = np.concatenate(
        [parameter.detach().double().reshape(-1).numpy() for parameter in trained().parameters()]
    )
    assert report.overall.std == pytest.approx(everything.std())
    assert report.overall.minimum == everything.min()


def spoil(report_of: Callable[[torch.nn.Sequential], None]) -> WeightReport:
    model = trained()
    with torch.no_grad():
        report_of(model)
    return undertow.weights(model)


def test_non_finite_weights_come_first() -> None:
    def change(model: torch.nn.Sequential) -> None:
        model[3].weight[2, 3] = torch.nan
        model[3].weight[2, 4] = torch.inf
        model[1].weight[:] = 7.0

    report = spoil(change)
    assert codes(report)[0] == ("NUM003", "critical", ("3.weight",))
    assert "1 NaN and 1 infinite" in report.issues[0].summary
    assert report.health is Health.CRITICAL
    assert report.overall.nonfinite_count == 2


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda model: model[1].weight.fill_(0.1), ("WGT002", "moderate", ("1.weight",))),
        (lambda model: model[1].weight.zero_(), ("WGT005", "mild", ("1.weight",))),
        (lambda model: model[1].weight.mul_(50), ("WGT003", "mild", ("1.weight",))),
        (lambda model: model[1].weight.mul_(5000), ("WGT003", "moderate", ("1.weight",))),
        (lambda model: model[1].weight.mul_(1e-3), ("WGT003", "mild", ("1.weight",))),
        (lambda model: model[1].weight[3:5].zero_(), ("WGT005", "mild", ("1.weight",))),
        (lambda model: model[1].weight[:40].zero_(), ("WGT005", "moderate", ("1.weight",))),
        (lambda model: model[0].weight[5, 6].fill_(30.0), ("WGT004", "mild", ("0.weight",))),
        (lambda model: model[3].reset_parameters(), ("UPD003", "mild", ("3.weight",))),
    ],
    ids=["constant", "zero", "large", "huge", "small", "dead units", "mostly dead", "outlier", "never trained"],
)
def test_each_disease(
    change: Callable[[torch.nn.Sequential], None], expected: tuple[str, str, tuple[str, ...]]
) -> None:
    assert codes(spoil(change)) == [expected]


def test_the_padding_of_a_table_is_no_disease() -> None:
    assert codes(spoil(lambda model: model[0].weight[0].zero_())) == []


def test_the_mask_of_an_attention_is_no_disease() -> None:
    mask = torch.triu(torch.full((16, 16), -torch.inf), 1)
    weight = 0.1 * torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    assert undertow.weights({"attention.mask": mask, "attention.weight": weight}).health is Health.HEALTHY
    assert undertow.weights({"attention.weight": weight + mask}).health is Health.CRITICAL


def test_an_untrained_model_is_a_remark() -> None:
    torch.manual_seed(4)
    report = undertow.weights(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 80)))
    assert codes(report) == [("UPD003", "info", ("0.weight", "1.weight"))]
    assert report.health is Health.HEALTHY


def test_duplicates_and_tied_weights(tmp_path: Path) -> None:
    first = np.random.default_rng(1).normal(0, 0.2, (40, 30))
    copied = undertow.weights({"a.weight": first, "b.weight": first.copy(), "c.weight": first + 0.1})
    assert [(group.paths, group.shared) for group in copied.duplicates] == [(("a.weight", "b.weight"), False)]
    assert ("WGT002", "mild", ("a.weight", "b.weight")) in codes(copied)
    model = trained()
    model.add_module("tied", torch.nn.Linear(32, 200, bias=False))
    model.tied.weight = model[0].weight  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    torch.save(model.state_dict(), tmp_path / "tied.pt")
    for source in (model, tmp_path / "tied.pt"):
        report = undertow.weights(source)
        assert [(group.paths, group.shared) for group in report.duplicates] == [(("0.weight", "tied.weight"), True)]
        assert codes(report) == []


def test_equal_constants_are_no_duplicates() -> None:
    assert undertow.weights({"a.bias": np.zeros(9), "b.bias": np.zeros(9)}).duplicates == ()


def test_drift_against_float64(tmp_path: Path) -> None:
    before, after = trained(), trained()
    with torch.no_grad():
        for parameter in after.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    save_file(before.state_dict(), tmp_path / "before.safetensors")
    drift = undertow.weights(after, tmp_path / "before.safetensors").drift
    assert drift is not None
    pairs = [
        (a.detach().double().numpy(), b.detach().double().numpy())
        for a, b in zip(after.parameters(), before.parameters())
    ]
    for one, (now, then) in zip(drift.tensors, pairs, strict=True):
        assert one.relative == pytest.approx(np.linalg.norm(now - then) / np.linalg.norm(then), rel=1e-9)
        cosine = (now * then).sum() / np.linalg.norm(now) / np.linalg.norm(then)
        assert one.cosine == pytest.approx(cosine, rel=1e-9)
        assert one.largest_change == np.abs(now - then).max()
        assert one.changed_fraction == pytest.approx((now != then).mean())
    now, then = (np.concatenate([pair[side].reshape(-1) for pair in pairs]) for side in (0, 1))
    assert drift.relative == pytest.approx(np.linalg.norm(now - then) / np.linalg.norm(then), rel=1e-9)
    assert drift.cosine == pytest.approx(now @ then / np.linalg.norm(now) / np.linalg.norm(then), rel=1e-9)


@pytest.mark.parametrize(
    ("factor", "severity"),
    [(1.0, "info"), (1.05, "info"), (1.5, "info"), (3.0, "info"), (20.0, "mild")],
)
def test_severity_of_drift(factor: float, severity: str) -> None:
    base = np.random.default_rng(1).normal(0, 0.1, (40, 30))
    drift = undertow.weights({"a.weight": base * factor}, {"a.weight": base}).drift
    assert drift is not None
    assert drift.relative == pytest.approx(abs(factor - 1), abs=1e-12)
    assert (str(drift.severity), str(drift.tensors[0].severity)) == (severity, severity)
    assert drift.cosine == pytest.approx(1.0)


def test_drift_that_cannot_be_told() -> None:
    base = np.random.default_rng(1).normal(0, 0.1, (40, 30))
    now = {"same": base, "zero": base, "shape": base, "lost": base * np.nan, "new": base}
    then = {"same": base, "zero": 0 * base, "shape": base.T, "lost": base, "old": base}
    report = undertow.weights(now, then)
    assert report.drift is not None
    by_path = {one.path: one for one in report.drift.tensors}
    assert by_path["same"].relative == 0.0
    assert by_path["same"].changed_fraction == 0.0
    assert by_path["zero"].missing["relative"] == "the earlier tensor is zero"
    assert by_path["zero"].difference_norm == pytest.approx(np.linalg.norm(base))
    assert "shape" in by_path["shape"].missing["relative"]
    assert by_path["lost"].severity is Severity.CRITICAL
    assert report.drift.severity is Severity.CRITICAL
    assert (report.drift.only_here, report.drift.only_there) == (("new",), ("old",))


def test_tensors_that_did_not_move() -> None:
    before, after = trained(), trained()
    with torch.no_grad():
        for name, parameter in after.named_parameters():
            if name != "3.weight":
                parameter += 0.001
    report = undertow.weights(after, before)
    assert ("UPD003", "mild", ("3.weight",)) in codes(report)
    frozen = trained()
    with torch.no_grad():
        frozen[3].weight += 0.001
    few = {code: (severity, layers) for code, severity, layers in codes(undertow.weights(frozen, before))}
    assert few["UPD004"][0] == "info"
    assert len(few["UPD004"][1]) == 6


def test_nothing_to_compare() -> None:
    with pytest.raises(UnreadableCheckpointError, match="no tensor in common"):
        undertow.weights({"a": np.ones(3)}, {"b": np.ones(3)})
    with pytest.raises(UnreadableCheckpointError, match="holds no weights"):
        undertow.weights({})
    with pytest.raises(UnreadableCheckpointError, match="holds no weights: count"):
        undertow.weights({"count": np.arange(3)})


def test_progress_goes_from_nothing_to_all() -> None:
    calls: list[tuple[int, int, str]] = []
    undertow.weights({"a": np.ones(4), "b": np.ones(12)}, progress=lambda *call: calls.append(call))
    assert calls == [(0, 128, "a"), (32, 128, "b"), (128, 128, "")]
