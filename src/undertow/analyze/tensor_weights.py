"""Everything said of one tensor, and of many tensors together."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import fsum, hypot, prod, sqrt

from undertow.analyze.spectrum import EXACT_UP_TO, spectrum
from undertow.analyze.weight_distribution import Distribution, measure, outliers
from undertow.analyze.weight_initialisation import initialisation
from undertow.analyze.weight_units import outlier_rows, units
from undertow.checkpoints.elements import Elements
from undertow.schema.checkpoints import Duplicates, Moments, Spectrum, TensorWeights


def describe(
    path: str, kind: str, elements: Elements, *, owner_fan_in: int | None = None, exact_up_to: int = EXACT_UP_TO
) -> TensorWeights:
    """`owner_fan_in`: of the weight that a bias belongs to."""
    shape = elements.shape
    distribution = measure(elements)
    missing: dict[str, str] = {}
    record = TensorWeights(
        path, kind, shape, elements.dtype, elements.raw.nbytes, distribution.moments, missing=missing
    )
    if prod(shape) == 0:
        missing["moments"] = "the tensor is empty"
        return record
    if distribution.moments.finite_count == 0:
        missing["moments"] = "no element is finite"
        return record
    matrix = len(shape) >= 2
    if not matrix:
        for name in ("units", "spectrum"):
            missing[name] = "it needs two dimensions"
    found = outliers(distribution, shape)
    if found is None:
        missing["outliers"] = "all elements are equal"
    elif matrix:
        found = replace(found, rows=outlier_rows(distribution))
    return replace(
        record,
        outliers=found,
        units=units(elements, distribution) if matrix else None,
        spectrum=_spectrum(elements, distribution, exact_up_to, missing) if matrix else None,
        initialisation=initialisation(distribution, kind, shape, elements.dtype, owner_fan_in),
    )


def _spectrum(
    elements: Elements, distribution: Distribution, exact_up_to: int, missing: dict[str, str]
) -> Spectrum | None:
    moments = distribution.moments
    if moments.nonfinite_count:
        missing["spectrum"] = f"the tensor holds {moments.nonfinite_count:,} non-finite values"
        return None
    found = spectrum(elements, moments.norm or 0.0, distribution.reach, exact_up_to)
    if found is None:
        missing["spectrum"] = "all elements are zero"
    return found


def pool(records: Iterable[Moments]) -> Moments:
    """The moments of all elements together, as if they were one tensor: every element counts the same."""
    records = list(records)
    count = sum(record.count for record in records)
    counts = (
        sum(r.nan_count for r in records),
        sum(r.infinite_count for r in records),
        sum(r.zero_count for r in records),
    )
    some = [
        (record, float(record.finite_count), record.mean, record.std)
        for record in records
        if record.mean is not None and record.std is not None
    ]
    number = fsum(finite for _, finite, _, _ in some)
    undivided = sum(r.undivided_count for r in records)
    if not number:
        return Moments(count, *counts, undivided_count=undivided)
    mean = fsum(finite * one for _, finite, one, _ in some) / number
    # Powers of deviations relative to the largest spread there is, so that none leaves the range of float64.
    unit = max(hypot(one - mean, std) for _, _, one, std in some) or 1.0
    second = third = fourth = 0.0
    for record, finite, one, std in some:
        shift, own = (one - mean) / unit, std / unit
        own_third, own_fourth = (record.skewness or 0.0) * own**3, ((record.kurtosis or 0.0) + 3.0) * own**4
        second += finite * (own**2 + shift**2)
        third += finite * (own_third + 3 * shift * own**2 + shift**3)
        fourth += finite * (own_fourth + 4 * shift * own_third + 6 * shift**2 * own**2 + shift**4)
    second, third, fourth = second / number, third / number, fourth / number
    return Moments(
        count,
        *counts,
        minimum=min((record.minimum for record, *_ in some if record.minimum is not None), default=None),
        maximum=max((record.maximum for record, *_ in some if record.maximum is not None), default=None),
        mean=mean,
        std=sqrt(second) * unit,
        skewness=third / second**1.5 if second > 0 else 0.0,
        kurtosis=fourth / second**2 - 3.0 if second > 0 else 0.0,
        norm=sqrt(number) * hypot(mean, sqrt(second) * unit),
        undivided_count=undivided,
    )


def pool_kinds(tensors: Sequence[TensorWeights]) -> dict[str, Moments]:
    by_kind: defaultdict[str, list[Moments]] = defaultdict(list)
    for tensor in tensors:
        by_kind[str(tensor.kind)].append(tensor.moments)
    return {kind: pool(records) for kind, records in by_kind.items()}


def find_duplicates(
    tensors: Sequence[TensorWeights], digests: Sequence[bytes], storages: Sequence[object]
) -> tuple[Duplicates, ...]:
    """Groups of tensors with the same bytes. Constant ones are left out: zero biases are alike in every model."""
    groups: defaultdict[bytes, list[int]] = defaultdict(list)
    for place, (tensor, digest) in enumerate(zip(tensors, digests, strict=True)):
        if tensor.moments.std:
            groups[digest].append(place)
    return tuple(
        Duplicates(
            tuple(tensors[place].path for place in places),
            shared=storages[places[0]] is not None and len({storages[place] for place in places}) == 1,
        )
        for places in groups.values()
        if len(places) > 1
    )
