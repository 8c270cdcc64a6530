"""Commands in a process of their own, with a limit on memory and time: what hostile files must not exceed."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

GIGABYTE = 1 << 30


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: str
    err: str
    seconds: float
    memory: int  # bytes, at most


def undertow(*arguments: object, address_space: int = 3 * GIGABYTE // 2, patience: float = 120) -> Ended:
    return python("-m", "undertow", *arguments, address_space=address_space, patience=patience)


def python(*arguments: object, address_space: int = 3 * GIGABYTE // 2, patience: float = 120) -> Ended:
    """A process that exceeds the address space sees a MemoryError, one that hangs is ended."""
    command = [sys.executable, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NO_COLOR": "1"}
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        began = time.monotonic()
        with out.open("wb") as first, err.open("wb") as second:
            process = subprocess.Popen(command, stdout=first, stderr=second, env=environment)
            resource.prlimit(process.pid, resource.RLIMIT_AS, (address_space, address_space))
            pid, status, used, memory = 0, 0, None, 0
            while not pid:
                memory = max(memory, _most_memory(process.pid))
                pid, status, used = os.wait4(process.pid, os.WNOHANG)
                if not pid and time.monotonic() - began > patience:
                    process.kill()
                    raise AssertionError(f"no end after {patience} s: {command}")
                time.sleep(0.01)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert used is not None
        seconds = used.ru_utime + used.ru_stime  # of the processor: other tests run beside this one
        return Ended(
            process.returncode,
            out.read_bytes().decode("utf-8", "replace"),
            err.read_bytes().decode("utf-8", "replace"),
            seconds,
            memory,
        )


def _most_memory(process: int) -> int:
    """So far. (What the system says at the end counts the process that started it, too.)"""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    lines = [line.split() for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(lines[0][1]) * 1024 if lines else 0
