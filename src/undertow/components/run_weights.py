"""The weights of a recorded run: the same report as for a checkpoint, as far as the recorded numbers go."""

from collections.abc import Sequence
from dataclasses import replace
from math import hypot, isfinite, sqrt

import numpy as np
from numpy.typing import NDArray

from undertow.analyze.run_series import RunNumbers, parts_of
from undertow.analyze.tensor_weights import pool, pool_kinds
from undertow.analyze.weight_drift import Movement, whole_drift
from undertow.analyze.weight_initialisation import scale_of
from undertow.checkpoints.elements import STORED
from undertow.components.run_verdicts import RunVerdicts
from undertow.schema import Finding, Layer, health_of
from undertow.schema.checkpoints import (
    Drift,
    Initialisation,
    Moments,
    Skipped,
    TensorDrift,
    TensorWeights,
    WeightIssue,
    WeightReport,
)
from undertow.schema.severity import worst_of

ROWS = 64  # steps read at a time, the newest first
MEASURED = "weight_nonfinite_count"  # a number whenever a weight was measured, whatever the weight is
WANTED = ("norm", "mean", "std", "min", "max", "skewness", "kurtosis", "zero_fraction", "nonfinite_count", "drift",
          "cosine_to_start")  # fmt: skip
_FIELDS = {"mean": "mean", "std": "std", "minimum": "min", "maximum": "max", "skewness": "skewness",
           "kurtosis": "kurtosis", "norm": "norm", "zero_count": "zero_fraction"}  # fmt: skip
ABOUT_WEIGHTS = ("NUM003", "WGT", "UPD003", "UPD004")  # codes of findings about weights
NOT_RECORDED = "a run records no single elements: `undertow weights CHECKPOINT` looks at them"
NOT_TWICE = "no weight was measured twice"
ZERO_OR_ONCE = "it was zero at the start, or not measured twice"
FROM_SKETCHES = "a run compares sketches of weights, not their elements"


def weights_of_run(
    run: RunNumbers, findings: Sequence[Finding], source: str = "a run", version: str = ""
) -> WeightReport:
    """Moments at the newest step at which each weight was measured; drift since the first.

    `version` is that of the Undertow that recorded the run. Issues and severities are those of the `findings`.
    """
    layers = [layer for layer in run.layers.in_execution_order() if not layer.is_module]
    newest = _rows_of(run, layers, newest=True)
    measured = [layer for layer in layers if newest[layer.id] >= 0]
    skipped = tuple(Skipped(layer.path, "its weights were not measured") for layer in layers if newest[layer.id] < 0)
    if not measured:
        nothing = Moments(0)
        note = "no weights were measured in this run"
        return WeightReport(version, source, "run", None, 0, 0, nothing, {}, (), (), skipped=skipped, notes=(note,))
    recorded = _recorded(run, measured, newest)
    tensors = tuple(_tensor(layer, recorded[layer.id]) for layer in measured)
    drift = _drift(run, measured, recorded, _rows_of(run, measured, newest=False))
    drift = None if drift is None else _diagnosed_drift(drift, RunVerdicts(findings))
    issues: tuple[WeightIssue, ...] = ()
    for one in findings:
        if one.code.startswith(ABOUT_WEIGHTS):
            shown = [(evidence.value, evidence.expected) for evidence in one.evidence[:1]] or [(None, None)]
            issues += (WeightIssue(one.code, one.name, one.severity, one.layers, one.summary, *shown[0]),)
    steps = sorted({int(run.steps[newest[layer.id]]) for layer in measured})
    when = f"step {steps[0]:,}" if len(steps) == 1 else f"steps {steps[0]:,} to {steps[-1]:,}"
    return WeightReport(
        undertow=version,
        source=source,
        format="run",
        health=health_of(issue.severity for issue in issues),
        parameter_count=sum(tensor.moments.count for tensor in tensors),
        bytes=sum(tensor.bytes for tensor in tensors),
        overall=pool(tensor.moments for tensor in tensors),
        kinds=pool_kinds(tensors),
        issues=issues,
        tensors=tensors,
        drift=drift,
        skipped=skipped,
        notes=(f"weights as measured after {when}", "duplicates are not looked for: that takes the elements"),
    )


def _diagnosed_drift(drift: Drift, verdicts: RunVerdicts) -> Drift:
    codes = ("NUM003", "WGT006")
    tensors = tuple(
        replace(tensor, severity=worst_of(one.severity for one in verdicts.of(tensor.path, codes)))
        for tensor in drift.tensors
    )
    return replace(drift, severity=worst_of(one.severity for one in tensors), tensors=tensors)


def _rows_of(run: RunNumbers, layers: Sequence[Layer], *, newest: bool) -> NDArray[np.int64]:
    """For each layer id, the newest (or first) row at which its weight was measured; −1 where there is none."""
    found = np.full(len(run.layers), -1, np.int64)
    if MEASURED not in run.quantities:
        return found
    missing = {layer.id for layer in layers}
    starts = range(0, len(run.steps), ROWS)
    for start in reversed(starts) if newest else starts:
        known = ~np.isnan(run.matrix(MEASURED, slice(start, min(len(run.steps), start + ROWS))))
        here = [identity for identity in missing if known[:, identity].any()]
        for identity in here:
            rows = np.flatnonzero(known[:, identity])
            found[identity] = start + int(rows[-1 if newest else 0])
        missing.difference_update(here)
        if not missing:
            break
    return found


def _recorded(run: RunNumbers, layers: Sequence[Layer], rows: NDArray[np.int64]) -> dict[int, dict[str, float]]:
    """The numbers of each layer at its newest row, by layer id; NaN for what was not recorded."""
    ids = [layer.id for layer in layers]
    numbers: dict[int, dict[str, float]] = {identity: {} for identity in ids}
    for name in WANTED:
        if f"weight_{name}" in run.quantities:
            for identity, value in zip(ids, _values_at(run, f"weight_{name}", rows, ids).tolist()):
                numbers[identity][name] = value
    return numbers


def _values_at(run: RunNumbers, quantity: str, rows: NDArray[np.int64], ids: Sequence[int]) -> NDArray[np.float64]:
    """One number for each of these layers, at its own row of `rows`. Where models come and go under one watch, those
    rows lie all over the run."""
    at, columns = rows[ids], np.asarray(ids)
    found = np.full(len(ids), np.nan)
    for part in parts_of(run, range(int(at.min()), int(at.max()) + 1)):
        here = (at >= part.start) & (at < part.stop)
        if here.any():
            found[here] = run.matrix(quantity, part)[at[here] - part.start, columns[here]]
    return found


def _tensor(layer: Layer, recorded: dict[str, float]) -> TensorWeights:
    moments = _moments(layer.parameter_count, recorded)
    fan_in, scale, missing = scale_of(moments, layer.kind, layer.shape)
    missing["resembles"] = NOT_RECORDED
    item = STORED[layer.dtype].itemsize if layer.dtype in STORED else 0
    return TensorWeights(
        path=layer.path,
        kind=layer.kind,
        shape=layer.shape,
        dtype=layer.dtype,
        bytes=item * layer.parameter_count,
        moments=moments,
        initialisation=Initialisation(fan_in, scale, missing=missing),
        missing=_missing(recorded),
    )


def _missing(recorded: dict[str, float]) -> dict[str, str]:
    """What no run has, and what this one has not."""
    absent: dict[str, str] = dict.fromkeys(("entropy_bits", "outliers", "units", "spectrum"), NOT_RECORDED)
    return absent | {
        field: "it was not recorded in this run"
        for field, name in _FIELDS.items()
        if np.isnan(recorded.get(name, np.nan)) and not recorded.get("nonfinite_count", 0.0) > 0
    }


def _moments(count: int, recorded: dict[str, float]) -> Moments:
    def known(name: str) -> float | None:
        value = recorded.get(name, np.nan)
        return value if isfinite(value) else None

    nonfinite = round(known("nonfinite_count") or 0.0)
    mean, std, norm = known("mean"), known("std"), known("norm")
    if norm is None and mean is not None and std is not None and count > nonfinite:
        norm = sqrt(count - nonfinite) * hypot(mean, std)  # that of the finite elements
    return Moments(
        count=count,
        zero_count=round((known("zero_fraction") or 0.0) * count),
        minimum=known("min"),
        maximum=known("max"),
        mean=mean,
        std=std,
        skewness=known("skewness"),
        kurtosis=known("kurtosis"),
        norm=norm,
        undivided_count=nonfinite,
    )


def _drift(
    run: RunNumbers, layers: Sequence[Layer], recorded: dict[int, dict[str, float]], first: NDArray[np.int64]
) -> Drift | None:
    """Since before the first measured step. The whole is put together from the norms, as of one long vector; those of
    the start are taken from after that step, which makes a difference of the first update only."""
    if "weight_drift" not in run.quantities or "weight_norm" not in run.quantities:
        return None
    ids = [layer.id for layer in layers]
    moved: list[Movement] = []
    for layer, then in zip(layers, _values_at(run, "weight_norm", first, ids).tolist()):
        now = recorded[layer.id]
        one, norm = _tensor_drift(layer, now, then), now.get("norm", np.nan)
        sums = ()
        if one.relative is not None and one.cosine is not None:
            sums = ((one.relative * then) ** 2, then**2, norm**2, one.cosine * norm * then)
        moved.append(Movement(one, *sums))
    drift = whole_drift(f"before step {int(run.steps[first[ids].min()]):,}", moved)
    missing = {} if drift.relative is not None else {"relative": NOT_TWICE, "cosine": NOT_TWICE}
    return replace(drift, missing=missing)


def _tensor_drift(layer: Layer, now: dict[str, float], then: float) -> TensorDrift:
    missing: dict[str, str] = {"largest_change": FROM_SKETCHES, "changed_fraction": FROM_SKETCHES}
    if now.get("nonfinite_count", 0.0) > 0 or not isfinite(then):
        reason = "the weight holds non-finite values"
        return TensorDrift(layer.path, layer.kind, missing={"relative": reason, "cosine": reason, **missing})
    relative, cosine = (
        value if isfinite(value) else None for value in (now.get("drift", np.nan), now.get("cosine_to_start", np.nan))
    )
    missing |= {name: ZERO_OR_ONCE for name, value in (("relative", relative), ("cosine", cosine)) if value is None}
    norm = None if relative is None else relative * then
    return TensorDrift(layer.path, layer.kind, relative, cosine, norm, missing=missing)
