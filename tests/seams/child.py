"""The process that records a run, with an error in it, or with a list of what it enters."""

from pathlib import Path
from typing import Any

from tests.seams.injection import Entries, Injection, Seam

from undertow.recording import child
from undertow.recording.messages import Failed

PROGRAM = """
import sys
seam, notes, sys.path[:] = {seam!r}, {notes!r}, sys.argv[2:]
from tests.seams.child import main
main(int(sys.argv[1]), seam, notes)
"""


def main(handle: int, seam: Seam | None, notes: str) -> None:
    """Notes every seam that is entered; or, of the one that fails, that the process ends by it."""
    found: dict[Seam, None] = {}
    encode = child.encode

    def encode_and_note(message: Any) -> bytes:
        if isinstance(message, Failed):  # before the training knows of it, and ends this process
            Path(notes).write_text("ended")
        return encode(message)

    child.encode = encode_and_note
    with Entries(found.setdefault if seam is None else Injection(Seam(*seam))) as entries:
        entries.part = "child"
        child.main(handle)
    if seam is None:
        Path(notes).write_text("\n".join("\t".join(one) for one in found))
