"""Commands as a reader of the docs types them: in a folder of theirs, with Undertow on the path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT


def call(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Plain, narrow, on one thread, with warnings as errors."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("UNDERTOW_", "PYTEST_"))}
    environment |= {"NO_COLOR": "1", "COLUMNS": "80", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
    environment["PYTHONPATH"] = str(ROOT)
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    return subprocess.run(
        command,
        check=False,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        stdin=subprocess.DEVNULL,
    )
