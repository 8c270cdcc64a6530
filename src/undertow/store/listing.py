"""The runs below a folder, the newest first; a damaged one is listed with what is wrong with it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from undertow.errors import UndertowError
from undertow.schema.addresses import address_of
from undertow.store.missing import missing_parts
from undertow.store.reader import RunReader
from undertow.store.run_documents import RUN_FILE

DEEPEST = 3  # folders between the root and a run


@dataclass(frozen=True, slots=True)
class RunSummary:
    folder: Path
    name: str
    status: str  # "unreadable" when `problem` says why
    steps: int
    last_step: int | None
    last_loss: float | None
    created: float
    problem: str = ""
    health: str | None = None  # as judged when it was closed
    cause: str = ""  # its first finding
    address: str = ""  # of a run that is not on a disk of this machine


def find_runs(root: Path, summary: Callable[[Path], RunSummary] | None = None) -> list[RunSummary]:
    """The root itself if it is a run, and the runs in the folders below it. `summary`: of who has some of them open."""
    address = address_of(root)
    if address is not None:
        from undertow.store.cloud.remote_runs import remote_runs

        return remote_runs(address)
    summaries = [(summary or summary_of)(folder) for folder in _run_folders(Path(root), DEEPEST)]
    return sorted(summaries, key=lambda summary: (-summary.created, summary.folder))


def _run_folders(folder: Path, depth: int) -> list[Path]:
    try:
        if (folder / RUN_FILE).exists():
            return [folder]
        inner = sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return []
    return [found for path in inner if depth for found in _run_folders(path, depth - 1)]


def summary_of(folder: Path, reader: RunReader | None = None, *, whole: bool = True) -> RunSummary:
    """Of a run that is not whole here, nothing is said to be missing."""
    try:
        reader = reader or RunReader(folder)
        losses = reader.scalars("loss") if "loss" in reader.scalar_names else np.empty(0)
        return RunSummary(
            folder=folder,
            name=reader.facts.name,
            status=reader.status,
            steps=len(reader.steps),
            last_step=int(reader.steps[-1]) if len(reader.steps) else None,
            last_loss=float(losses[-1]) if len(losses) else None,
            created=reader.facts.created,
            problem="; ".join([*reader.problems, *(missing_parts(reader) if whole else [])]),
            health=reader.facts.health,
            cause=reader.facts.cause,
        )
    except Exception as error:  # whatever is wrong with one run must not hide the others
        why = error.message if isinstance(error, UndertowError) else f"{type(error).__name__}: {error}"
        return RunSummary(folder, folder.name, "unreadable", 0, None, None, 0.0, why)
