"""Memory follows the largest tensor, never the checkpoint: peak ≤ 2 × the largest tensor + 200 MB.

The bound holds for the whole process, interpreter and numpy included. No format needs torch.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

MEGA = 1_000_000
ONE_THREAD = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

# The high-water mark of the process's own memory. Not `ru_maxrss`: a child begins with its parent's.
STUDY = """
import sys
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
import undertow
report = undertow.weights(*sys.argv[1:])
print(peak(), report.bytes, max(tensor.bytes for tensor in report.tensors), "torch" in sys.modules)
"""

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's account of memory")


def write_safetensors(path: Path, shapes: dict[str, tuple[int, int]]) -> None:
    """Written piece by piece: the file may be larger than memory."""
    header: dict[str, object] = {}
    at = 0
    for name, (rows, columns) in shapes.items():
        header[name] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": [at, at + 4 * rows * columns]}
        at += 4 * rows * columns
    text = json.dumps(header).encode()
    random = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for rows, columns in shapes.values():
            for row in range(0, rows, 1000):
                file.write(random.standard_normal((min(1000, rows - row), columns), np.float32).tobytes())


def shapes_of(total: int, largest: int, columns: int) -> dict[str, tuple[int, int]]:
    """One tensor of `largest` bytes, and others of an eighth of it to fill `total`."""
    rows = largest // 4 // columns
    shapes = {"embed.weight": (rows, columns)}
    while 4 * sum(r * c for r, c in shapes.values()) < total:
        shapes[f"blocks.{len(shapes)}.weight"] = (rows // 8, columns)
    return shapes


def assert_bounded(path: Path, *against: Path) -> None:
    command = [sys.executable, "-c", STUDY, path, *against]
    done = subprocess.run(command, env=ONE_THREAD, capture_output=True, text=True, check=True)
    peak, total, largest = map(int, done.stdout.split()[:3])
    print(f"{path.name}: {total / 1e9:.2f} GB, largest {largest / 1e6:.0f} MB, peak {peak / 1e6:.0f} MB")
    assert done.stdout.split()[3] == "False"
    assert total > 3 * largest
    assert peak <= 2 * largest + 200 * MEGA


CONVERT = """
import sys, torch, torch.distributed.checkpoint
from safetensors.torch import load_file
tensors = load_file(sys.argv[1])
if sys.argv[2].endswith(".pt"):
    torch.save(tensors, sys.argv[2])
else:
    torch.distributed.checkpoint.save(tensors, checkpoint_id=sys.argv[2])
"""


def converted(source: Path, target: Path) -> Path:
    command = [sys.executable, "-W", "ignore", "-c", CONVERT, source, target]
    subprocess.run(command, env=ONE_THREAD, check=True)
    return target


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Emptied afterwards: pytest would keep gigabytes."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def test_memory_follows_the_largest_tensor(folder: Path) -> None:
    """260 MB, more than the allowance, so that holding everything would fail."""
    path = folder / "a.safetensors"
    write_safetensors(path, shapes_of(260 * MEGA, 16 * MEGA, 128))
    assert_bounded(path)
    assert_bounded(converted(path, folder / "a.pt"))
    assert_bounded(converted(path, folder / "distributed"))


@pytest.mark.slow
def test_four_gigabytes(folder: Path) -> None:
    """Matrices too large for all singular values, so that the randomised method is bounded, too, and drift."""
    path = folder / "a.safetensors"
    write_safetensors(path, shapes_of(4000 * MEGA, 520 * MEGA, 4096))
    assert_bounded(path)
    assert_bounded(path, path)
    assert_bounded(converted(path, folder / "a.pt"))
