"""What the pages of the dashboard and of a report show, as plain data."""

from pathlib import Path, PureWindowsPath
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from undertow.run import Run
from undertow.schema import QUANTITIES, STREAMS
from undertow.schema.checkpoints import WeightReport
from undertow.schema.seeds.flow_records import ColorScheme
from undertow.store.journal import EVENTS_FILE
from undertow.views.density import STREAMS as DENSITY_STREAMS
from undertow.views.density import Density
from undertow.views.flow_rows import notes_of
from undertow.views.grid import MARKS
from undertow.views.line_points import Line
from undertow.views.palette import palette_of
from undertow.views.places import where
from undertow.views.report_wording import health_words
from undertow.views.tiles import COLUMNS, drawable, in_reading_order
from undertow.views.verdict import Verdict, judge

_CHECKPOINTS = "weights*.json"  # what `undertow weights --json` wrote into the folder of a run
_MOST_CHECKPOINTS = 8
_LARGEST = 64_000_000  # bytes
_FACTS = ("ended", "command", "torch", "device", "message", "settings", "optimizers")
_SHADES = np.linspace(0, 1, 256, dtype=np.float32)


def described(identity: str, run: Run) -> dict[str, Any]:
    """Everything about a run but its numbers."""
    facts = run.facts
    return {
        "id": identity,
        "name": run.name,
        "facts": {"created": facts.created or None} | {name: getattr(facts, name) for name in _FACTS},
        "layers": {"parameters": _layers(run, modules=False), "modules": _layers(run, modules=True)},
        "quantities": [_quantity(name) for name in drawable(run.reader)],
        "distributions": [stream for stream in DENSITY_STREAMS if f"{stream}_histogram" in run.quantities],
        "scalars": run.scalar_names,
        "tile_columns": COLUMNS,
        **progress(run),
    }


def times(run: Run, most: int = 512) -> dict[str, list[float]]:
    """When some of the steps were: seconds since 1970, evenly over the steps, the first and the last among them."""
    steps, seconds = run.steps, run.reader.times
    chosen = np.unique(np.linspace(0, len(steps) - 1, min(most, len(steps))).round().astype(np.int64))
    known = chosen[np.isfinite(seconds[chosen])] if len(steps) else chosen
    return {"steps": steps[known].tolist(), "times": [round(float(second), 2) for second in seconds[known]]}


def progress(run: Run) -> dict[str, Any]:
    """What changes while a run is written."""
    steps = run.steps
    return {
        "status": run.status,
        "sequence": run.reader.last_sequence,
        "steps": {
            "first": int(steps[0]) if len(steps) else None,
            "last": int(steps[-1]) if len(steps) else None,
            "recorded": len(steps),
        },
        "layer_count": len(run.layers),
        "journal": _size(run.folder / EVENTS_FILE),
    }


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _layers(run: Run, *, modules: bool) -> list[dict[str, Any]]:
    """In the order of the rows of a tile; `place` is where a layer stands on the page."""
    layers = run.layers.modules if modules else run.layers.parameters
    place = {layer.id: position for position, layer in enumerate(in_reading_order(layers))}
    return [
        {
            "id": layer.id,
            "path": layer.path,
            "kind": layer.module_type if modules else str(layer.kind),
            "parameters": layer.parameter_count,
            "shape": layer.shape,
            "place": place[layer.id],
        }
        for layer in layers
    ]


def _quantity(name: str) -> dict[str, Any]:
    known = QUANTITIES.get(name)
    if known is None:
        return {"name": name, "stream": "other", "unit": "1", "what": "", "of": "", "modules": False}
    record = {key: getattr(known, key) for key in ("stream", "unit", "what", "of")}
    return {"name": name, **record, "modules": STREAMS[known.stream].covers_modules}


def diagnosis(run: Run, verdict: Verdict) -> dict[str, Any]:
    """As `report --json` has it, with the verdict in words; `place` says in few words where a finding is, `kinds` what
    the modules there are."""
    kinds = {layer.path: layer.module_type for layer in run.layers.modules if layer.module_type}
    tensors = [layer.path for layer in run.layers.parameters]
    findings = [
        msgspec.to_builtins(one)
        | {"place": where(one.layers, tensors), "kinds": {name: kinds[name] for name in one.layers if name in kinds}}
        for one in verdict.diagnosis.findings
    ]
    words = {"verdict": health_words(verdict.diagnosis), "from_journal": verdict.from_journal}
    return msgspec.to_builtins(verdict.diagnosis) | {"findings": findings} | words


FLOW_PARTS = (
    "flow_network", "critical_paths", "vanishing_regions", "exploding_regions", "dead_zones", "nonfinite_layers",
    "unavailable",
)  # fmt: skip
_NEWEST = 512  # recorded steps that the analysis of flow looks at: it is quick however long the run is


def flow(run: Run, verdict: Verdict | None = None) -> dict[str, Any]:
    """The network with its gains, its paths and its regions, over the newest steps. Without `verdict` it is judged."""
    newest = run.steps[-_NEWEST:]
    found = run.flow(last=_NEWEST, findings=(verdict or judge(run)).diagnosis.findings)
    document = msgspec.to_builtins({part: getattr(found, part) for part in FLOW_PARTS})
    span = {"first": int(newest[0]), "last": int(newest[-1]), "recorded": len(newest)} if len(newest) else None
    return document | {"steps": span, "source": str(run.graph.source), "notes": notes_of(found)}


def weights(run: Run, verdict: Verdict | None = None) -> dict[str, Any]:
    """The report of the run itself, with the spectra of its `checkpoints`, the newest first: a run records none."""
    report = run.weights(findings=(verdict or judge(run)).diagnosis.findings)
    return msgspec.to_builtins(report) | {"checkpoints": [_checkpoint(file) for file in _files(run.folder)]}


def _files(folder: Path) -> list[Path]:
    try:
        found = [(file.stat().st_mtime, file) for file in folder.glob(_CHECKPOINTS) if file.is_file()]
    except OSError:
        return []
    return [file for _, file in sorted(found, reverse=True)[:_MOST_CHECKPOINTS]]


def _checkpoint(file: Path) -> dict[str, Any]:
    """Written by anybody: whatever is wrong with it is said, and the rest of the page stays."""
    named: dict[str, Any] = {"file": file.name, "source": file.name, "tensors": [], "problem": None}
    try:
        if file.stat().st_size > _LARGEST:
            return named | {"problem": f"it is larger than {_LARGEST // 1_000_000} MB"}
        report = msgspec.json.decode(file.read_bytes(), type=WeightReport)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        return named | {"problem": f"it is no report of `undertow weights --json` ({problem})"}
    spectra = [
        {"path": tensor.path, "shape": tensor.shape, **msgspec.to_builtins(tensor.spectrum)}
        for tensor in report.tensors
        if tensor.spectrum is not None
    ]
    return named | {"source": PureWindowsPath(report.source).name or file.name, "tensors": spectra}


def line(points: Line) -> dict[str, Any]:
    parts = {name: _numbers(getattr(points, name)) for name in ("minimum", "mean", "maximum")}
    return {"steps": points.steps.tolist(), **parts, "nonfinite": np.flatnonzero(points.nonfinite).tolist()}


def density(found: Density) -> dict[str, Any]:
    return {
        "steps": found.steps.tolist(),
        "ends": found.ends.tolist(),
        "low": found.low,
        "shares": found.shares.astype(np.float64).round(5).tolist(),
        "measured": found.is_measured,
    }


def _numbers(values: NDArray[np.float64]) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in values.tolist()]


def colours() -> dict[str, Any]:
    """The palettes and the codes that every medium shares."""
    schemes = {str(scheme): palette_of(scheme) for scheme in ColorScheme}
    return {
        "sequential": {name: one.sequential(_SHADES).tolist() for name, one in schemes.items()},
        "diverging": {name: one.diverging(_SHADES).tolist() for name, one in schemes.items()},
        "marks": {
            name: [{"code": code} | msgspec.to_builtins(one.marks[cell]) for cell, code in MARKS.items()]
            for name, one in schemes.items()
        },
    }
