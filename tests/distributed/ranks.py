"""Starts a program once per rank, with the variables that `torchrun` sets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs.py"
PATIENCE = 400.0  # seconds: against waiting for ever, and far above what a busy machine takes


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(ranks: int, arguments: Sequence[str], program: Path = PROGRAMS) -> list[subprocess.Popen[str]]:
    here = dict(
        os.environ,
        WORLD_SIZE=str(ranks),
        LOCAL_WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(free_port()),
        OMP_NUM_THREADS="1",
        PYTHONWARNINGS="default",
    )
    return [
        subprocess.Popen(
            [sys.executable, str(program), *arguments],
            env={**here, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]


def finish(processes: Sequence[subprocess.Popen[str]], timeout: float = PATIENCE) -> list[str]:
    """What each rank printed; their exit codes must be 0."""
    said: list[str] = []
    try:
        for process in processes:
            said.append(process.communicate(timeout=timeout)[0])
    finally:
        for process in processes:
            process.kill()
    codes = [process.returncode for process in processes]
    assert codes == [0] * len(codes), "\n".join(f"rank {rank}: {text}" for rank, text in enumerate(said))
    return said


def run(ranks: int, folder: Path, *names: str) -> list[str]:
    return finish(start(ranks, [str(folder), *names]))
