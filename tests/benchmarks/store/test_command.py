"""The benchmark of the store runs to its end; how fast that is, is not a matter for tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_it_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.store", "--steps", "3000", "--layers", "20", "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    assert "per frame" in done.stdout
