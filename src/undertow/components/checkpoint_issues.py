"""What is wrong with the weights of a checkpoint, by rules that docs/components/weights.md states."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from undertow.schema import LayerKind, Severity
from undertow.schema.checkpoints import Drift, Duplicates, TensorWeights, WeightIssue
from undertow.schema.codes import CODES
from undertow.schema.seeds.weight_records import WeightDriftSeverity

# Root mean square × √fan_in. Common initialisations lie between 0.5 and 1.5, trained layers between 0.1 and 5.
SMALL_SCALE, LARGE_SCALE, HUGE_SCALE = 0.01, 10.0, 100.0
# Scales (about standard deviations) from the mean; a normal distribution of 10⁹ elements stays within 6.4.
FAR, VERY_FAR = 50.0, 1000.0
FEWEST_FOR_OUTLIERS = 1000
_MATRICES = (LayerKind.WEIGHT, LayerKind.RECURRENT)
# Relative norms up to which a drift is minimal, low, medium; above, it is high. Fine-tuning stays below 0.1. Training
# from scratch moves nearly half of all weights by more than their own norm, and of 407 tensors of the healthy trainings
# one by more than ten times that: even this is worth a remark only.
DRIFT_LIMITS = (0.1, 1.0, 10.0)


def drift_level(relative: float) -> WeightDriftSeverity:
    return list(WeightDriftSeverity)[sum(relative > limit for limit in DRIFT_LIMITS)]


def judged_drift(drift: Drift, nonfinite: Collection[str]) -> Drift:
    """With severities; `nonfinite` are the paths of tensors that were lost."""
    tensors = tuple(
        replace(one, severity=Severity.CRITICAL if one.path in nonfinite else _drift_severity(one.relative))
        for one in drift.tensors
    )
    return replace(drift, severity=Severity.CRITICAL if nonfinite else _drift_severity(drift.relative), tensors=tensors)


def _drift_severity(relative: float | None) -> Severity:
    high = relative is not None and drift_level(relative) is WeightDriftSeverity.HIGH
    return Severity.MILD if high else Severity.INFO


def find_issues(
    tensors: Sequence[TensorWeights], duplicates: Sequence[Duplicates], drift: Drift | None
) -> tuple[WeightIssue, ...]:
    """The worst first; among equals in the order of the checkpoint, non-finite values before everything."""
    found = [issue for tensor in tensors for issue in _of_tensor(tensor)]
    for group in duplicates:
        if not group.shared:
            summary = f"{group.paths[0]} and {', '.join(group.paths[1:4])} hold the same values"
            found.append(_issue("WGT002", Severity.MILD, group.paths, summary))
    found += [*_of_initialisation(tensors), *(_of_drift(drift) if drift else ())]
    return tuple(sorted(found, key=lambda issue: -issue.severity.rank))


def _issue(
    code: str, severity: Severity, layers: Sequence[str], summary: str, value: float | None = None,
    expected: float | None = None,
) -> WeightIssue:  # fmt: skip
    return WeightIssue(code, CODES[code], severity, tuple(layers), summary, value, expected)


def _of_tensor(tensor: TensorWeights) -> Iterator[WeightIssue]:
    path, moments = tensor.path, tensor.moments
    zeros_only = 0 < moments.zero_count == moments.finite_count
    if zeros_only and 0 < moments.infinite_count == moments.nonfinite_count:
        return  # a mask: what attention adds to its logits, kept as a buffer. No training ends there
    if moments.nonfinite_count:
        what = f"{moments.nan_count:,} NaN and {moments.infinite_count:,} infinite of {moments.count:,} elements"
        if moments.undivided_count:
            what = f"{moments.undivided_count:,} NaN or infinite of {moments.count:,} elements"
        yield _issue("NUM003", Severity.CRITICAL, [path], f"{path} holds {what}", float(moments.nonfinite_count), 0.0)
    if tensor.kind in _MATRICES and moments.std == 0 and moments.count > 1:
        if moments.mean == 0:
            yield _issue("WGT005", Severity.MILD, [path], f"{path} is zero everywhere", 0.0)
        else:
            same = f"all {moments.count:,} elements of {path} are {moments.mean:.6g}"
            yield _issue("WGT002", Severity.MODERATE, [path], f"{same}: its units are copies of each other", 0.0)
        return
    yield from _of_scale(tensor)
    yield from _of_outliers(tensor)
    yield from _of_units(tensor)


def _of_scale(tensor: TensorWeights) -> Iterator[WeightIssue]:
    scale = None if tensor.initialisation is None else tensor.initialisation.scale
    if scale is None or SMALL_SCALE <= scale <= LARGE_SCALE:
        return
    severity = Severity.MODERATE if scale > HUGE_SCALE else Severity.MILD
    effect = "multiplies" if scale > 1 else "shrinks"
    summary = f"{tensor.path} {effect} the size of its input about {scale:.3g}-fold (root mean square × √fan-in)"
    yield _issue("WGT003", severity, [tensor.path], summary, scale, 1.0)


def _of_outliers(tensor: TensorWeights) -> Iterator[WeightIssue]:
    found = tensor.outliers
    if found is None or not found.largest or tensor.moments.count < FEWEST_FOR_OUTLIERS:
        return
    worst = found.largest[0]
    if tensor.kind not in (*_MATRICES, LayerKind.EMBEDDING) or worst.deviations <= FAR:
        return
    severity = Severity.MODERATE if worst.deviations > VERY_FAR else Severity.MILD
    summary = (
        f"{tensor.path}{list(worst.position)} is {worst.value:.4g}, {worst.deviations:.0f} scales from the mean; "
        f"{found.count:,} lie beyond {found.limit:.2g}, and {found.expected:.2g} would in a normal distribution"
    )
    yield _issue("WGT004", severity, [tensor.path], summary, worst.deviations, found.limit)


def _of_units(tensor: TensorWeights) -> Iterator[WeightIssue]:
    units = tensor.units
    if units is None or tensor.kind not in (*_MATRICES, LayerKind.EMBEDDING) or units.sparsity == "all zero":
        return
    # One empty entry of a table is its padding; dead inputs are common (unused pixels) and are not the layer's fault.
    if units.dead_rows <= (1 if tensor.kind == LayerKind.EMBEDDING else 0):
        return
    share = units.dead_rows / units.rows
    what = "entries" if tensor.kind == LayerKind.EMBEDDING else "output units"
    summary = f"{units.dead_rows:,} of the {units.rows:,} {what} of {tensor.path} have no weights but zero"
    yield _issue("WGT005", Severity.MODERATE if share > 0.5 else Severity.MILD, [tensor.path], summary, share, 0.0)


def _of_initialisation(tensors: Sequence[TensorWeights]) -> Iterator[WeightIssue]:
    """A weight that looks untrained means something only beside others that do not."""
    judged = [
        (tensor.path, tensor.initialisation.resembles)
        for tensor in tensors
        if tensor.kind in (*_MATRICES, LayerKind.EMBEDDING)
        and tensor.initialisation
        and "resembles" not in tensor.initialisation.missing
    ]
    alike = [(path, recipe) for path, recipe in judged if recipe]
    if not alike:
        return
    paths = [path for path, _ in alike]
    if len(alike) == len(judged):
        untrained = "every weight looks as it was initialised: nothing was trained yet"
        yield _issue("UPD003", Severity.INFO, paths, untrained)
        return
    summary = (
        f"{len(alike)} of {len(judged)} weights cannot be told from their initialisation, "
        f"first {paths[0]} ({alike[0][1]}): never trained, or never used"
    )
    yield _issue("UPD003", Severity.MILD, paths, summary, float(len(alike)), 0.0)


def _of_drift(drift: Drift) -> Iterator[WeightIssue]:
    for one in drift.tensors:
        if one.severity is not Severity.INFO and one.relative is not None:
            cosine = "" if one.cosine is None else f", and points elsewhere (cosine {one.cosine:.2f})"
            summary = f"{one.path} moved {one.relative:.3g} times its earlier norm{cosine}"
            yield _issue("WGT006", one.severity, [one.path], summary, one.relative, 0.0)
    known = [one for one in drift.tensors if one.changed_fraction is not None and one.kind != "buffer"]
    still = [one.path for one in known if one.changed_fraction == 0]
    if still and len(still) < len(known):
        # Most of a model unchanged is fine-tuning with the rest frozen on purpose.
        few = len(still) <= len(known) / 2
        summary = f"{len(still)} of {len(known)} tensors are the same in both checkpoints, first {still[0]}"
        yield _issue("UPD003" if few else "UPD004", Severity.MILD if few else Severity.INFO, still, summary)
    for one in drift.tensors:
        reason = one.missing.get("relative", "")
        if one.relative is None and "shape" in reason:
            yield _issue("WGT006", Severity.MODERATE, [one.path], f"{one.path} cannot be compared: {reason}")
