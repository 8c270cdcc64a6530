"""A run opened for reading: lazily, beside a live writer, and without trusting a byte of it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from undertow.errors import UnknownNameError, UnreadableRunError
from undertow.schema import QUANTITIES, STREAMS, Frame, RunFacts, RunStatus
from undertow.store import run_documents
from undertow.store.frame_assembly import FrameSource
from undertow.store.journal import EVENTS_FILE, read_journal
from undertow.store.layout import ABSENT, SCALARS, SegmentFacts
from undertow.store.liveness import is_alive
from undertow.store.overlay import overlay
from undertow.store.row_index import Integers, RowTable, Timeline
from undertow.store.segment import DamagedSegmentError, Segment, SegmentReplacedError
from undertow.store.segment_catalogue import SEGMENTS_FOLDER, ZOOM_FOLDER, Catalogue
from undertow.store.window import Window, summarize_window
from undertow.store.zoom_levels import Levels

_ATTEMPTS = 8  # a writer that replaces a file between two looks does so rarely
_FRAMES_AT_ONCE = 64
_BYTES_PER_ROW = 80  # of the index: three keys and a row number, once by segment and once by stream
_BYTES_PER_FILE = 2500
Result = TypeVar("Result")


class RunReader:
    """Everything a run folder holds, as numpy arrays. Call `refresh` to see what was appended since."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            what = "is not a folder" if self.folder.exists() else "does not exist"
            raise UnreadableRunError(f"{self.folder} {what}", way_out="`undertow runs` lists the runs of a folder.")
        self.facts: RunFacts = run_documents.read_facts(self.folder)
        self._frame_rows = Catalogue(self.folder / SEGMENTS_FOLDER, lambda stream: stream == SCALARS)
        self._segments = Catalogue(self.folder / SEGMENTS_FOLDER, lambda stream: stream != SCALARS)
        self._zoom = Catalogue(self.folder / ZOOM_FOLDER)
        self._catalogues = (self._frame_rows, self._segments, self._zoom)
        self._timeline = Timeline(RowTable.of([]))
        self._more = False  # frames were seen that `refresh` has not told of
        self._tables: dict[str, tuple[RowTable, Integers]] = {}
        self._levels: dict[str, list[Levels]] = {}
        self._document_versions: tuple[object, ...] = ()
        self._damaged_events = 0
        self._document_problems: list[str] = []
        self.refresh()

    def refresh(self) -> bool:
        """Pick up what was written since; True if anything is new."""
        # The writer saves a layer, then writes rows of it, then the row that makes a frame count. Looking
        # the other way round, we never count a frame of which we cannot see everything.
        new_frames = self._refresh_timeline()
        changed = self._segments.refresh() | self._zoom.refresh()
        documents_changed = self._read_documents()
        if new_frames or changed or documents_changed:
            self._tables.clear()
            self._levels.clear()
        return new_frames or bool(changed) or documents_changed

    def _refresh_timeline(self) -> bool:
        changed, self._more = self._more, False
        for _ in range(_ATTEMPTS):
            changed |= bool(self._frame_rows.refresh())
            try:
                if changed:
                    self._timeline = Timeline(RowTable.of(self._frame_rows.segments((SCALARS, 1))))
                break
            except (SegmentReplacedError, DamagedSegmentError):
                continue  # just packed by the writer
        return changed

    def _read_documents(self) -> bool:
        files = (run_documents.RUN_FILE, run_documents.LAYERS_FILE, EVENTS_FILE)
        versions = tuple(_version(self.folder / name) for name in files)
        if versions == self._document_versions:
            return False
        first = not self._document_versions
        try:
            self.facts = run_documents.read_facts(self.folder)
            self.layers, self.graph = run_documents.read_layers(self.folder)
            self._document_problems = []
        except UnreadableRunError as error:
            if first:
                raise
            self._document_problems = [error.message]  # keep what was read before
        self._document_versions = versions
        return True

    @property
    def status(self) -> str:
        """As the run says, or "killed" when it says running and no one is there to write it."""
        if self.facts.status is not RunStatus.RUNNING:
            return str(self.facts.status)
        return "running" if is_alive(self.folder, self.facts) else "killed"

    @property
    def problems(self) -> list[str]:
        """Damage met so far, in words; what could be read was read."""
        rows = [
            f"{segment.path.parent.name}/{segment.path.name}: {segment.damaged_rows} damaged rows are left out"
            for catalogue in self._catalogues
            for segment in catalogue.opened
            if segment.damaged_rows
        ]
        events = [f"{EVENTS_FILE}: {self._damaged_events} damaged lines are left out"] if self._damaged_events else []
        files = [problem for catalogue in self._catalogues for problem in catalogue.problems.values()]
        return [*self._document_problems, *files, *rows, *events]

    @property
    def index_bytes(self) -> int:
        """About what this object takes: it grows with the rows and files that somebody asked for."""
        opened = [segment for catalogue in self._catalogues for segment in catalogue.opened]
        return sum(_BYTES_PER_FILE + _BYTES_PER_ROW * segment.indexed_rows for segment in opened)

    @property
    def steps(self) -> Integers:
        """The steps of all frames, each once, in order."""
        return self._timeline.steps

    @property
    def last_sequence(self) -> int:
        return int(self._timeline.sequence[-1]) if len(self._timeline.sequence) else -1

    @property
    def frame_count(self) -> int:
        return len(self._timeline.sequence)

    @property
    def times(self) -> NDArray[np.float64]:
        """Seconds since the epoch at each of `steps` (of the last frame of a step)."""
        out = np.full(len(self.steps), np.nan)
        out[self._timeline.position] = self._timeline.table.time
        return out

    @property
    def scalar_names(self) -> list[str]:
        names: dict[str, None] = {}
        for segment in self._timeline.table.segments:
            names.update(dict.fromkeys(segment.facts.quantities))
        return list(names)

    def scalars(self, name: str) -> NDArray[np.float64]:
        """One number per step, NaN where there is none; of several frames in a step, the last that has one."""
        if name not in self.scalar_names:
            raise UnknownNameError(
                f"this run has no scalar {name!r}", way_out=f"It has: {', '.join(self.scalar_names) or 'none'}."
            )
        return self._stable(lambda: self._scalars(name))

    def _scalars(self, name: str) -> NDArray[np.float64]:
        out = np.full(len(self.steps), np.nan)
        timeline = self._timeline
        for segment, places in timeline.table.by_segment():
            if name in segment.facts.quantities:
                column = 3 + segment.facts.quantities.index(name)
                values = segment.read(column, timeline.table.row[places])
                present = values.view(np.uint64) != np.float64(ABSENT).view(np.uint64)
                out[timeline.position[places[present]]] = values[present]
        return out

    @property
    def quantities(self) -> list[str]:
        """Names of which something is stored, in the order of the vocabulary."""
        stored: dict[str, None] = {}
        for stream, _ in self._segments.keys:
            for facts in self._facts_of(stream) if not _is_of_connections(stream) else ():
                stored.update(dict.fromkeys(facts.quantities))
        known = [name for name in QUANTITIES if name in stored]
        return [*known, *(name for name in stored if name not in QUANTITIES)]

    def series(self, quantity: str, layer_id: int | str) -> NDArray[np.float32]:
        """One number per step, NaN where not measured."""
        return self.matrix(quantity, [self.layer_id(layer_id)])[:, 0]

    def matrix(
        self, quantity: str, layer_ids: Sequence[int] | NDArray[Any] | None = None, rows: slice | None = None
    ) -> NDArray[np.float32]:
        """(steps × layers), NaN where not measured; `rows` restricts it to a part of `steps`."""
        values = self._values(quantity, layer_ids, rows)
        return values.reshape(len(values), values.shape[1] * values.shape[2])

    def along_connections(self, quantity: str, rows: slice | None = None) -> NDArray[np.float32]:
        """(steps × connections of the graph), NaN where not measured."""
        return self._values(quantity, np.arange(len(self.graph.connections)), rows)[:, :, 0]

    def newest_along_connections(self, quantity: str, count: int, first: int = 0) -> NDArray[np.float32]:
        """(samples × connections of the graph): the newest `count`, none before row `first` of `steps`."""
        _, position = self._table(self._stream(quantity))
        present = np.unique(position[position >= first])[-count:]
        return self._values(quantity, np.arange(len(self.graph.connections)), present)[:, :, 0]

    def sketches(
        self, quantity: str, layer_ids: Sequence[int] | NDArray[Any] | None = None
    ) -> tuple[Integers, NDArray[np.float32]]:
        """The steps that have a sketch, and (those steps × layers × width)."""
        _, position = self._table(self._stream(quantity))
        present = np.unique(position)
        return self.steps[present], self._values(quantity, layer_ids, present)

    def _values(
        self, quantity: str, layer_ids: Sequence[int] | NDArray[Any] | None, wanted: slice | Integers | None
    ) -> NDArray[np.float32]:
        stream = self._stream(quantity)
        ids = np.asarray(layer_ids) if _is_of_connections(stream) else self._layer_ids(layer_ids)
        width = QUANTITIES[quantity].width if quantity in QUANTITIES else 1

        def read() -> NDArray[np.float32]:
            places = np.arange(len(self.steps))[slice(None) if wanted is None else wanted]
            return overlay(*self._table(stream), quantity, ids, places, width)

        return self._stable(read)

    def frames(self, after_sequence: int = -1) -> Iterator[Frame]:
        """Frames as they were appended, in order, with what they say of layers. A frame that a disk budget thinned has
        its scalars only."""
        while True:
            first = int(np.searchsorted(self._timeline.sequence, after_sequence, "right"))
            if first >= self.frame_count:
                return
            chunk = self._stable(lambda first=first: self._frames(first, first + _FRAMES_AT_ONCE))
            if not chunk:
                return  # somebody has cut the run short
            yield from chunk
            after_sequence = chunk[-1].sequence

    def _frames(self, first: int, last: int) -> list[Frame]:
        if first >= self.frame_count:
            return []
        keys = self._segments.keys
        streams = [stream for stream in STREAMS if (stream, 1) in keys and not _is_of_connections(stream)]
        source = FrameSource(self._timeline, {stream: self._table(stream)[0] for stream in streams})
        return source.frames(first, last)

    def events(self) -> list[dict[str, Any]]:
        events, self._damaged_events = read_journal(self.folder)
        return events

    def window(
        self,
        quantity: str,
        first_step: int,
        last_step: int,
        columns: int,
        layer_ids: Sequence[int] | NDArray[Any] | None = None,
    ) -> Window:
        """Smallest, mean and largest value over consecutive frames from `first_step` to `last_step`, both included.

        At least `columns` rows (fewer when fewer frames are there) and less than twice as many, read
        from the coarsest zoom level that has them: the cost grows with `columns`, not with the steps.
        """
        ids = self._layer_ids(layer_ids)
        stream = self._stream(quantity)
        if QUANTITIES.get(quantity) is not None and QUANTITIES[quantity].width > 1:
            raise UnknownNameError(f"{quantity!r} is a sketch: it has no smallest or largest value")
        span, columns = (first_step, last_step), max(1, columns)

        def read() -> Window:
            levels = self._levels_of(stream)
            # Where several sets of layers share a stream, the frames of each say which one leads.
            alone = len(levels) == 1
            tables = [one.around(span, columns) if alone else one.whole() for one in levels]
            return summarize_window(tables, quantity, ids, span, columns)

        return self._stable(read)

    def _table(self, stream: str) -> tuple[RowTable, Integers]:
        """The rows of a stream that belong to frames, and the place of each in `steps`."""
        if stream not in self._tables:
            table, frame = self._timeline.committed(RowTable.of(self._usable(self._segments, stream, 1)))
            self._tables[stream] = (table, self._timeline.position[frame])
        return self._tables[stream]

    def _levels_of(self, stream: str) -> list[Levels]:
        """For each set of layers that the stream was recorded for: its rows at every zoom level."""
        if stream not in self._levels:
            by_layers: dict[tuple[int, ...], dict[int, list[Segment]]] = {}
            for catalogue, (name, level) in [(c, key) for c in (self._segments, self._zoom) for key in c.keys]:
                for segment in self._usable(catalogue, stream, level) if name == stream else []:
                    by_layers.setdefault(segment.facts.layers, {}).setdefault(level, []).append(segment)
            self._levels[stream] = [Levels(segments, self._timeline) for segments in by_layers.values()]
        return self._levels[stream]

    def _usable(self, catalogue: Catalogue, stream: str, level: int) -> list[Segment]:
        """Segments whose layers all exist."""
        good: list[Segment] = []
        count = len(self.graph.connections if _is_of_connections(stream) else self.layers)
        for segment in catalogue.segments((stream, level)):
            ids = segment.facts.layers
            if ids and not (min(ids) >= 0 and max(ids) < count):
                name = f"{segment.path.parent.name}/{segment.path.name}"
                catalogue.problems[segment.path] = (
                    f"{name} is left out: it has layers that {run_documents.LAYERS_FILE} lacks"
                )
            else:
                good.append(segment)
        return good

    def _facts_of(self, stream: str) -> list[SegmentFacts]:
        """Of the first and the last segment: between them the quantities do not change."""
        return [segment.facts for segment in self._segments.ends((stream, 1))]

    def _stream(self, quantity: str) -> str:
        if quantity in QUANTITIES:
            return QUANTITIES[quantity].stream
        for stream, _ in self._segments.keys:
            if any(quantity in facts.quantities for facts in self._facts_of(stream)):
                return stream
        raise UnknownNameError(
            f"there is no quantity {quantity!r}", way_out=f"This run has: {', '.join(self.quantities) or 'none'}."
        )

    def layer_id(self, layer: int | str) -> int:
        """The id of a layer given by id or path."""
        known = self.layers.get(layer) if isinstance(layer, str) else None
        number = known.id if known is not None else layer
        if isinstance(number, str) or not 0 <= number < len(self.layers):
            raise UnknownNameError(f"this run has no layer {layer!r}", way_out="`run.layers` lists them.")
        return int(number)

    def _layer_ids(self, layer_ids: Sequence[int] | NDArray[Any] | None) -> Integers:
        if layer_ids is None:
            return np.arange(len(self.layers))
        return np.array([self.layer_id(int(layer)) for layer in layer_ids], np.int64)

    def _look_again(self) -> None:
        """Find the files anew, but keep the time axis: only `refresh` may make it longer."""
        last = self.last_sequence
        self.refresh()
        self._tables.clear()
        self._levels.clear()
        if self.last_sequence > last:
            self._timeline = self._timeline.until(last)
            self._more = True

    def _stable(self, read: Callable[[], Result]) -> Result:
        """Read, and look again when the writer has replaced a file under our eyes."""
        for _ in range(_ATTEMPTS):
            try:
                return read()
            except SegmentReplacedError:
                self._look_again()
            except DamagedSegmentError as error:
                raise UnreadableRunError(f"{self.folder}: a segment changed while it was read; {error}") from None
        raise UnreadableRunError(f"{self.folder} changes faster than it can be read", way_out="Try again.")


def _is_of_connections(stream: str) -> bool:
    return stream in STREAMS and STREAMS[stream].covers_connections


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
