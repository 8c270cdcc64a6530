"""The runs below an address. Only their facts and scalars are fetched."""

import dataclasses
from pathlib import Path

from undertow.errors import UnreadableRunError
from undertow.store.cloud.mirror import Mirror
from undertow.store.cloud.place import Place, reason_of
from undertow.store.cloud.run_files import SCALARS_TURN, SEGMENT_END, turn_of
from undertow.store.listing import DEEPEST, RunSummary, summary_of
from undertow.store.run_documents import RUN_FILE


def remote_runs(address: str) -> list[RunSummary]:
    """The address itself if it is a run, and the runs below it, the newest first."""
    try:
        names = Place(address).files()
    except UnreadableRunError:
        raise
    except OSError as problem:
        raise UnreadableRunError(f"{address} cannot be read: {reason_of(problem)}") from None
    found = [name.rpartition("/")[0] for name in names if name.rpartition("/")[2] == RUN_FILE]
    places = [place for place in found if place.count("/") <= DEEPEST - 1]
    summaries = [_summary(f"{address}/{place}" if place else address) for place in places]
    return sorted(summaries, key=lambda summary: (-summary.created, summary.folder))


def _summary(address: str) -> RunSummary:
    mirror = Mirror(address)
    try:
        mirror.fetch(lambda name: turn_of(name) == SCALARS_TURN or not name.endswith(SEGMENT_END))
    except UnreadableRunError as problem:
        return RunSummary(Path(address), address.rpartition("/")[2], "unreadable", 0, None, None, 0.0, problem.message)
    return dataclasses.replace(summary_of(mirror.folder, whole=False), folder=Path(address), address=address)
