"""What must grow with the data that a user keeps: the index of a run that is open, as the dashboard has it."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

from undertow.run import Run
from undertow.views import page_documents
from undertow.views.tiles import tile_of


@dataclass(frozen=True, slots=True)
class Held:
    """By a run that is open."""

    steps: int
    bytes: int


def held_by(folder: Path) -> Held:
    """After all that the dashboard is asked of it. Twice: imports and caches of the process are no part of it."""
    _asked(folder)
    gc.collect()
    tracemalloc.start()
    try:
        run = _asked(folder)
        gc.collect()
        return Held(len(run.steps), tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()


def _asked(folder: Path) -> Run:
    run = Run(folder)
    page_documents.flow(run)
    page_documents.weights(run)
    tile_of(run.reader, "gradient_norm", 4, 0)
    run.scalars("loss")
    return run


def growth(before: Held, after: Held) -> float:
    """Megabytes."""
    return max(0, after.bytes - before.bytes) / 1e6


def growth_in_words(before: Held, after: Held) -> str:
    grown, steps = growth(before, after), after.steps - before.steps
    each = f"{1e6 * grown / steps:.0f} bytes for each of {steps:,} steps" if steps else "no steps"
    return f"{after.bytes / 1e6:.1f} MB for {after.steps:,} steps; since warm-up {grown:+.2f} MB: {each}"
