"""The weights of a run: as it recorded them, and as `undertow weights` found them in its checkpoints.

A run records no single elements, so it has no spectra. Whoever writes `undertow weights CHECKPOINT --json` into the
folder of a run, as `weights.json` or `weights-NAME.json`, finds them beside the rest.
"""

from pathlib import Path, PureWindowsPath
from typing import Any

import msgspec

from undertow.run import Run
from undertow.schema.checkpoints import WeightReport
from undertow.views.verdict import judge

PATTERN = "weights*.json"
_MOST_FILES = 8
_LARGEST = 64_000_000  # bytes


def weights(run: Run) -> dict[str, Any]:
    """The report of the run itself, with the spectra of `checkpoints`, the newest first."""
    report = run.weights(findings=judge(run).diagnosis.findings)
    return msgspec.to_builtins(report) | {"checkpoints": [_checkpoint(file) for file in _files(run.folder)]}


def _files(folder: Path) -> list[Path]:
    try:
        found = [(file.stat().st_mtime, file) for file in folder.glob(PATTERN) if file.is_file()]
    except OSError:
        return []
    return [file for _, file in sorted(found, reverse=True)[:_MOST_FILES]]


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
