"""A place in the user's program: what a finding points at."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """Lines as they were when they ran, so that a later edit does not change what a report shows.

    `file` is relative to the working folder of the training where it lies below it. `role` says what the place has to
    do with the finding: cut, loss, optimizer, definition…; `note` says what happens there. `before` and `after` are
    the lines around it.
    """

    file: str
    line: int
    end_line: int
    function: str
    code: str
    role: str
    note: str = ""
    before: str = ""
    after: str = ""

    @property
    def address(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class RecordedPlace:
    """A place as the journal holds it, in an event of kind `source`.

    `subjects` are the layers it concerns, none where it concerns the whole training; `operation` is what was done.
    """

    place: SourcePlace
    subjects: tuple[str, ...] = ()
    operation: str = ""
    rank: int = 0  # among places of the same role: the lowest comes first
