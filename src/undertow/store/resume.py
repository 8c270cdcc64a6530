"""What a writer must know of the part of a run that is already there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from undertow.errors import UnwritableRunError
from undertow.schema import LayerGraph, LayerTable, RunFacts, RunStatus
from undertow.store import run_documents
from undertow.store.layout import SCALARS
from undertow.store.liveness import is_alive
from undertow.store.row_index import RowTable, Timeline
from undertow.store.segment_catalogue import SEGMENTS_FOLDER, Catalogue


@dataclass(frozen=True, slots=True)
class EarlierPart:
    facts: RunFacts
    layers: LayerTable
    graph: LayerGraph
    last_sequence: int  # highest number used, by a whole frame or not
    last_step: int | None

    @classmethod
    def of(cls, folder: Path, may_be_alive: bool = False) -> EarlierPart:
        facts = run_documents.read_facts(folder)
        running = not may_be_alive and facts.status is RunStatus.RUNNING and facts.process != os.getpid()
        if running and is_alive(folder, facts):
            raise UnwritableRunError(
                f"{folder} is being written by process {facts.process}",
                way_out="Wait for it to end, or choose another run folder.",
            )
        layers, graph = run_documents.read_layers(folder)
        catalogue = Catalogue(folder / SEGMENTS_FOLDER)
        catalogue.refresh()
        timeline = Timeline(RowTable.of(catalogue.segments((SCALARS, 1))))
        last_sequence = -1
        for key in catalogue.keys:
            for segment in catalogue.segments(key):
                _, (sequence, *_) = segment.index()
                last_sequence = max(last_sequence, int(sequence[-1]) if len(sequence) else -1)
        last_step = int(timeline.table.step[-1]) if len(timeline.sequence) else None
        return cls(facts, layers, graph, last_sequence, last_step)
