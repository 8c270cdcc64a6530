"""The report as a file on disk."""

import os
from collections.abc import Callable
from pathlib import Path

from undertow.errors import UnwritableRunError
from undertow.run import Run
from undertow.show.page.page import page
from undertow.show.page.snapshot import snapshot
from undertow.views.verdict import Verdict


def write_report(run: Run, file: Path, tell: Callable[[str], None] = lambda message: None) -> int:
    """Write the report of a run, and say how many bytes it has. An old file is never half overwritten."""
    tell("judging the run")
    verdict = Verdict(run.diagnose(), from_journal=False)
    text = page(verdict.diagnosis, snapshot(run, verdict, tell=tell)).encode()
    partial = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        partial.write_bytes(text)
        partial.replace(file)
    except OSError as problem:
        raise UnwritableRunError(
            f"{file} cannot be written: {problem.strerror or problem}", way_out="Choose another file"
        ) from None
    finally:
        partial.unlink(missing_ok=True)
    return len(text)
