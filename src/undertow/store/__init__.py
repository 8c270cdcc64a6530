"""Bytes that survive: a run on disk, written by one process and readable by any other, without torch."""

from undertow.store.latest import new_run_folder, point_latest
from undertow.store.listing import RunSummary, find_runs
from undertow.store.reader import RunReader
from undertow.store.window import Window
from undertow.store.writer import RunWriter

__all__ = ["RunReader", "RunSummary", "RunWriter", "Window", "find_runs", "new_run_folder", "point_latest"]
