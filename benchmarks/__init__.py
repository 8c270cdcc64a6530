"""Measurements, one folder each, run from the repository root: `python -m benchmarks.store`."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
if str(SOURCE) not in sys.path:
    sys.path.insert(0, str(SOURCE))  # measure the tree this folder is in, whatever is installed
