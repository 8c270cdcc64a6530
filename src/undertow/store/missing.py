"""What a run must have held and does not."""

from itertools import islice

from undertow.schema.quantities import GRADIENT
from undertow.store.layout import SCALARS
from undertow.store.reader import RunReader
from undertow.store.segment_catalogue import SEGMENTS_FOLDER, ZOOM_FOLDER, files_of, segment_name

_NAMED = 3  # missing files; a number in a name is no reason to list all below it


def missing_parts(reader: RunReader) -> list[str]:
    """What is missing, in words. Only what is certain: a disk budget takes files away, but never the first of a
    stream, and no file of scalars.
    """
    status = reader.status
    if status == "running":  # half written
        return []
    if reader.facts.frames_dropped:  # and whole files with them
        return [f"{reader.facts.frames_dropped:,} frames could not be written, perhaps because the disk was full"]
    stored: dict[str, set[int]] = {}
    for (stream, _), number, _ in files_of(reader.folder / SEGMENTS_FOLDER):
        stored.setdefault(stream, set()).add(number)
    zoomed = {stream for (stream, _), _, _ in files_of(reader.folder / ZOOM_FOLDER)}
    # A kill may fall between the first numbers of a frame and the row that makes it count.
    stepped = status != "killed" and reader.facts.steps_seen > 0
    expected = {SCALARS, GRADIENT.name} if stepped else {SCALARS} if zoomed else set[str]()
    problems: list[str] = []
    for stream in sorted(expected | stored.keys() | zoomed):
        numbers = stored.get(stream, set[int]())
        wanted = range(max(numbers, default=0) + 1) if stream == SCALARS else range(1)
        count = len(wanted) - len(numbers & {0} if len(wanted) == 1 else numbers)
        named = list(islice((number for number in wanted if number not in numbers), _NAMED))
        problems += [f"{SEGMENTS_FOLDER}/{segment_name(stream, 1, number)} is missing" for number in named]
        if count > len(named):
            problems.append(f"{count - len(named):,} more files of {stream} are missing")
    return problems
