"""The weights of a checkpoint as text."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from undertow.schema import Severity
from undertow.schema.checkpoints import Drift, TensorWeights, WeightIssue, WeightReport
from undertow.show.report.text import HEALTH_STYLES, STYLES, table_of
from undertow.views.places import where
from undertow.views.report_wording import GLYPHS, percent

_ISSUES_SHOWN = 8
_DRIFT_SHOWN = 8


def weights_report(report: WeightReport, *, all_tensors: bool = False) -> RenderableType:
    """One screen: verdict, issues, kinds, drift; with `all_tensors` a line for each tensor."""
    size = f"{len(report.tensors):,} tensors, {report.parameter_count:,} parameters, {_bytes(report.bytes)}"
    title = Text.assemble(
        (str(report.health or "no verdict"), HEALTH_STYLES[report.health]),
        "  ",
        (f"{report.source} · {report.format} · {size}", "dim"),
    )
    parts: list[RenderableType] = [title, Text(""), *_issues(report), _kinds(report)]
    if report.drift is not None:
        parts += [Text(""), *_drift(report.drift)]
    if all_tensors:
        parts += [Text(""), _tensors(report.tensors)]
    parts += [Text(f"Note: {note}.", style="dim") for note in _remarks(report)]
    return Group(*parts)


def _issues(report: WeightReport) -> Iterator[RenderableType]:
    """One entry for each kind of issue: a fault of the whole model is one thing to read, not one for each layer."""
    alike: dict[tuple[str, Severity, bool], list[WeightIssue]] = {}
    for issue in report.issues:
        # Too large is not the same as too small.
        above = issue.value is not None and issue.expected is not None and issue.value > issue.expected
        alike.setdefault((issue.code, issue.severity, above), []).append(issue)
    for (code, severity, _), (first, *others) in list(alike.items())[:_ISSUES_SHOWN]:
        label = (f"{GLYPHS[severity]} {severity}", STYLES[severity])
        yield Text.assemble(label, f"  {code} {first.name}: {first.summary}")
        if others:
            yield Text(f"   the same in {where([issue.layers[0] for issue in others], limit=3)}", style="dim")
    more = len(alike) - _ISSUES_SHOWN
    if more > 0:
        yield Text(f"and {more:,} more kinds: --json has them all", style="dim")
    if report.issues:
        yield Text("")


def _kinds(report: WeightReport) -> Table:
    table = table_of("kind", "elements", "mean", "std", "min", "max", "kurtosis", "zero")
    rows = [*report.kinds.items(), ("all but buffers", report.overall)]
    for kind, moments in rows:
        numbers = (moments.mean, moments.std, moments.minimum, moments.maximum, moments.kurtosis)
        table.add_row(kind, f"{moments.count:,}", *map(_number, numbers), percent(moments.zero_fraction))
    return table


def _tensors(tensors: tuple[TensorWeights, ...]) -> Table:
    table = table_of("tensor", "shape", "std", "scale", "spectral", "stable rank", "tail", "zero")
    for tensor in tensors:
        spectrum, scale = tensor.spectrum, tensor.initialisation and tensor.initialisation.scale
        spectral = (None, None, None)
        if spectrum is not None:
            spectral = spectrum.spectral_norm, spectrum.stable_rank, spectrum.tail_exponent
        shape = "×".join(map(str, tensor.shape)) or "scalar"
        numbers = map(_number, (tensor.moments.std, scale, *spectral))
        table.add_row(tensor.path, shape, *numbers, percent(tensor.moments.zero_fraction))
    return table


def _drift(drift: Drift) -> Iterator[RenderableType]:
    yield Text(
        f"Against {drift.against}: moved {_number(drift.relative)} times its norm, cosine {_number(drift.cosine)}; "
        f"median over tensors {_number(drift.median_relative)}"
    )
    moved = sorted(
        (one for one in drift.tensors if one.relative is not None), key=lambda one: one.relative or 0.0, reverse=True
    )
    table = table_of("moved most", "relative", "cosine", "largest change", "changed")
    for one in moved[:_DRIFT_SHOWN]:
        changed = "-" if one.changed_fraction is None else percent(one.changed_fraction)
        table.add_row(one.path, *map(_number, (one.relative, one.cosine, one.largest_change)), changed)
    yield table


def _remarks(report: WeightReport) -> list[str]:
    remarks = list(report.notes)
    shared = [" = ".join(group.paths) for group in report.duplicates if group.shared]
    remarks += [f"one tensor under several names: {names}" for names in shared[:4]]
    alike: dict[str, list[str]] = {}
    for skipped in report.skipped:
        alike.setdefault(skipped.reason, []).append(skipped.path)
    for reason, paths in list(alike.items())[:4]:
        others = f" and {len(paths) - 3:,} more" if len(paths) > 3 else ""
        remarks.append(f"left out {', '.join(paths[:3])}{others}: {reason}")
    if len(alike) > 4:
        remarks.append(f"left out {sum(map(len, list(alike.values())[4:])):,} more: --json names them")
    randomised = sum(
        tensor.spectrum is not None and tensor.spectrum.method == "randomised" for tensor in report.tensors
    )
    if randomised:
        remarks.append(f"{randomised:,} large matrices: spectra by a randomised method, see --json")
    if report.drift is not None:
        for where, paths in (("here", report.drift.only_here), ("there", report.drift.only_there)):
            if paths:
                remarks.append(f"{len(paths):,} tensors are only {where}: {', '.join(paths[:3])}")
    return remarks


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _bytes(size: int) -> str:
    power = min(3, (len(str(size)) - 1) // 3)
    return f"{size / 1000**power:.3g} {('B', 'kB', 'MB', 'GB')[power]}"
