"""Files of a run that must have been there and are not."""

from undertow.schema.quantities import GRADIENT
from undertow.store.layout import SCALARS
from undertow.store.reader import RunReader
from undertow.store.segment_catalogue import SEGMENTS_FOLDER, ZOOM_FOLDER, files_of, segment_name


def missing_files(reader: RunReader) -> list[str]:
    """What is missing, in words. Only what is certain: a disk budget takes files away, but never the first of a
    stream, and no file of scalars.
    """
    status = reader.status
    if status == "running" or reader.facts.frames_dropped:  # half written; or numbers that a full disk left out
        return []
    stored: dict[str, set[int]] = {}
    for (stream, _), number, _ in files_of(reader.folder / SEGMENTS_FOLDER):
        stored.setdefault(stream, set()).add(number)
    zoomed = {stream for (stream, _), _, _ in files_of(reader.folder / ZOOM_FOLDER)}
    # A kill may fall between the first numbers of a frame and the row that makes it count.
    stepped = status != "killed" and reader.facts.steps_seen > 0
    expected = {SCALARS, GRADIENT.name} if stepped else {SCALARS} if zoomed else set[str]()
    names: list[str] = []
    for stream in sorted(expected | stored.keys() | zoomed):
        numbers = stored.get(stream, set[int]())
        wanted = range(max(numbers, default=0) + 1) if stream == SCALARS else range(1)
        names += [segment_name(stream, 1, number) for number in wanted if number not in numbers]
    return [f"{SEGMENTS_FOLDER}/{name} is missing" for name in names]
