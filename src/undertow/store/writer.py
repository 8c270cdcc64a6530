"""Writing a run. Called from one background thread; after construction nothing here raises into it.

A frame is written block by block and counts once its scalars row, the last of it, is on disk. Frames
that come together are written together: the blocks of all of them, one write per stream, then their
scalars. A frame that does not fit on the disk is dropped and counted; when space returns, writing goes on.
"""

import os
import socket
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from undertow.errors import UnreadableRunError, UnwritableRunError
from undertow.schema import STREAMS, Block, Frame, LayerGraph, LayerTable, RunFacts
from undertow.store import run_documents
from undertow.store.journal import Journal
from undertow.store.latest import PRIVATE
from undertow.store.layout import facts_of_block
from undertow.store.resume import EarlierPart
from undertow.store.segment_catalogue import SEGMENTS_FOLDER, ZOOM_FOLDER, files_of
from undertow.store.thinning import DiskBudget
from undertow.store.tracks import Files, ScalarTrack, Track
from undertow.store.write_batch import Batch, Group, batches, plain

SEGMENT_BYTES = 16 << 20
_SMALLEST_SEGMENT_BYTES = 64 << 10
_MOST_OPEN_TRACKS = 32  # files held open; the least recently used is closed first


class RunWriter:
    """The one writer of a run folder."""

    def __init__(
        self,
        folder: Path,
        facts: RunFacts,
        *,
        resume: bool = False,
        takes_over: bool = False,
        disk_budget: int | None = None,
        zoom: bool = True,
    ) -> None:
        """`takes_over`: go on with the part that another process has begun, which has ended or will not write again.
        No seam is marked, and the facts are complete as they are given.
        """
        self.folder = Path(folder)
        self.facts = facts
        self.layers = LayerTable()  # what the run to resume already has
        self._connections: dict[tuple[str, str], int] = {}  # as numbered in the run, which may be resumed
        self._connection_ids = np.empty(0, np.int32)  # by the number that the training gives them
        self.last_step: int | None = None
        self.last_error = ""  # why the latest frame was dropped
        self._sequence = -1  # of the last frame that was tried
        self._offset = 0
        self.seam_due = False  # the next frame is the first one after a resume
        self._closed = False
        self._unsaved_layers: tuple[LayerTable, LayerGraph] | None = None
        self._zoom = zoom
        earlier = self._prepare(resume or takes_over, takes_over)
        self._files = self._make_files(disk_budget)
        self._budget: DiskBudget | None = None
        if disk_budget is not None:
            self._budget = DiskBudget(self._files, disk_budget)
            self._budget.adopt((self._files.segments, self._files.zoom))
            self._files.on_closed = self._budget.add
        self._journal = Journal(self.folder)
        self._scalars = ScalarTrack(self._files)
        self._tracks: OrderedDict[tuple[str, bytes], Track] = OrderedDict()
        if earlier is not None:
            self._continue(earlier, takes_over)
        facts.process = facts.process or os.getpid()
        facts.host = facts.host or socket.gethostname()
        facts.created = facts.created or time.time()
        try:
            run_documents.write_facts(self.folder, facts)
        except OSError as error:
            raise _unwritable(self.folder, error) from None

    @property
    def bytes_written(self) -> int:
        return self._files.bytes_written + self._journal.bytes_written

    @property
    def bytes_on_disk(self) -> int:
        return self._files.bytes_on_disk

    @property
    def last_sequence(self) -> int:
        """The highest number of a frame so far; -1 before the first."""
        return self._sequence

    @property
    def frames_dropped(self) -> int:
        return self.facts.frames_dropped

    def set_layers(self, layers: LayerTable, graph: LayerGraph) -> None:
        """Layers are only ever added at the end: their ids are what the segments hold."""
        old = self.layers.paths
        if len(layers) < len(old) and layers.paths == old[: len(layers)]:
            return  # what was asked of a process that is gone, asked again: it had gone further
        if layers.paths[: len(old)] != old:
            raise UnwritableRunError(
                f"the layers of {self.folder} are not those of this model",
                way_out="Resume with the model the run was begun with, or choose a new run folder.",
            )
        self.layers = layers
        known = self._connections
        places = [known.setdefault(pair, len(known)) for pair in graph.connections]
        self._connection_ids = np.array(places, np.int32)
        self._unsaved_layers = (layers, replace(graph, connections=tuple(known)))
        self._save_layers()

    def append(self, frame: Frame) -> bool:
        """True when the frame is on disk. False: it was dropped and counted, and `last_error` says why."""
        return self.append_many((frame,)) == 1

    def append_many(self, frames: Sequence[Frame]) -> int:
        """Write frames, many of one layout in hardly more time than one; returns how many are on disk. The others
        were dropped and counted, and `last_error` says why the latest of them was.
        """
        written = 0
        try:
            for batch in batches(frames, _MOST_OPEN_TRACKS):
                written += self._commit(batch)
        except Exception as error:  # whatever it is, the training is worth more than the frames
            self._trouble(error)
        self.facts.frames_dropped += len(frames) - written
        return written

    def event(self, kind: str, step: int | None = None, **fields: Any) -> None:
        self._journal.append(kind, step, fields)

    def write_facts(self) -> None:
        try:
            run_documents.write_facts(self.folder, self.facts)
        except Exception as error:
            self.last_error = str(error)

    def close(self) -> None:
        """The status in `facts` is the caller's to set before."""
        self._closed = True
        for track in (*self._tracks.values(), self._scalars):
            try:
                track.close()
            except Exception as error:
                self.last_error = str(error)
        self._tracks.clear()
        self._save_layers()
        self.write_facts()
        self._journal.close()

    def _commit(self, batch: Batch) -> int:
        """Write all blocks, then the scalars: what has no row of scalars does not count."""
        if self._closed:
            raise ValueError("the run is closed")
        if not self._save_layers():
            raise OSError(f"{run_documents.LAYERS_FILE} cannot be written: {self.last_error}")
        batch.number([self._next_sequence(frame) for frame in batch.frames])
        written: list[tuple[Track, Group]] = []
        lost: set[int] = set()  # places of frames in the batch
        for group in batch.groups:
            group = group.without(lost)
            if not group.places:
                continue
            done = 0
            try:
                track = self._track(group.first)
                done, error = track.append(batch.keys(group.places), group.values())
                written.append((track, group))
            except Exception as trouble:
                error = trouble
            if error is not None:
                self._trouble(error)
                lost.update(group.places[done:])
        left = [place for place in range(len(batch.frames)) if place not in lost]
        done, error = self._scalars.append(batch.keys(left), [plain(batch.frames[place].scalars) for place in left])
        if error is not None:
            self._trouble(error)
            lost.update(left[done:])
        if done:
            try:
                self._follow_up(batch, written, lost, batch.frames[left[0]].step)
            except Exception as error:  # the frames themselves are safe
                self._trouble(error)
        return done

    def _next_sequence(self, frame: Frame) -> int:
        if frame.sequence + self._offset <= self._sequence:
            self._offset = self._sequence + 1 - frame.sequence
        self._sequence = frame.sequence + self._offset
        return self._sequence

    def _follow_up(self, batch: Batch, written: list[tuple[Track, Group]], lost: set[int], first_step: int) -> None:
        """What frames entail once they count: zoom levels, the seam of a resumed run, the disk budget."""
        for track, group in written:
            group = group.without(lost)
            if group.places:
                track.summarize(batch.keys(group.places), group.values())
        if self.seam_due:
            self.seam_due = False
            self.facts.seams.append(first_step)
            self.write_facts()
        if self._budget is not None:
            self._budget.keep(self._sequence)

    def _trouble(self, error: Exception) -> None:
        self.last_error = str(error) or type(error).__name__

    def _track(self, block: Block) -> Track:
        key = (block.stream, block.layer_ids.tobytes())
        track = self._tracks.get(key)
        if track is None:
            if len(self._tracks) >= _MOST_OPEN_TRACKS:
                self._tracks.popitem(last=False)[1].close()
            stream = STREAMS[block.stream]
            ids = self._connection_ids[block.layer_ids] if stream.covers_connections else block.layer_ids
            zoomed = self._zoom and stream.quantities[0].width == 1 and len(ids) > 0 and not stream.covers_connections
            track = self._tracks[key] = Track(self._files, facts_of_block(stream, ids), zoomed=zoomed)
        self._tracks.move_to_end(key)
        return track

    def _save_layers(self) -> bool:
        if self._unsaved_layers is not None:
            try:
                run_documents.write_layers(self.folder, *self._unsaved_layers)
                self._unsaved_layers = None
            except Exception as error:
                self.last_error = str(error)
                return False
        return True

    def _prepare(self, resume: bool, takes_over: bool) -> EarlierPart | None:
        """Make the folder; None unless it holds a run that is to be continued."""
        try:
            holds_run = (self.folder / run_documents.RUN_FILE).exists()
            self.folder.mkdir(PRIVATE, parents=True, exist_ok=True)
            for name in (SEGMENTS_FOLDER, ZOOM_FOLDER):
                (self.folder / name).mkdir(self.folder.stat().st_mode, exist_ok=True)
        except OSError as error:
            raise _unwritable(self.folder, error) from None
        if not holds_run:
            return None
        if not resume:
            raise UnwritableRunError(
                f"{self.folder} already holds a run", way_out="Choose another run folder, or resume this one."
            )
        try:
            return EarlierPart.of(self.folder, may_be_alive=takes_over)
        except UnreadableRunError as error:
            raise UnwritableRunError(
                f"the run in {self.folder} cannot be resumed: {error.message}", way_out="Choose another run folder."
            ) from None

    def _make_files(self, disk_budget: int | None) -> Files:
        size = SEGMENT_BYTES
        if disk_budget is not None:
            size = min(size, max(_SMALLEST_SEGMENT_BYTES, disk_budget // 32))
        files = Files(self.folder / SEGMENTS_FOLDER, self.folder / ZOOM_FOLDER, size)
        for folder in (files.segments, files.zoom):
            for key, number, entry in files_of(folder):
                files.next_number[key] = max(files.next_number.get(key, 0), number + 1)
                files.bytes_on_disk += entry.stat().st_size
        return files

    def _continue(self, earlier: EarlierPart, takes_over: bool) -> None:
        self.layers = earlier.layers
        self._connections = {pair: place for place, pair in enumerate(earlier.graph.connections)}
        self.last_step = earlier.last_step
        self._sequence = earlier.last_sequence
        if takes_over:
            return
        self.seam_due = earlier.last_step is not None
        self.facts.created = earlier.facts.created
        self.facts.name = self.facts.name or earlier.facts.name
        self.facts.seams[:0] = earlier.facts.seams
        self.facts.frames_dropped += earlier.facts.frames_dropped


def _unwritable(folder: Path, error: OSError) -> UnwritableRunError:
    return UnwritableRunError(
        f"the run folder {folder} cannot be written: {error.strerror or error}",
        way_out="Choose a folder you may write to, with `run_dir` or UNDERTOW_DIR.",
    )
