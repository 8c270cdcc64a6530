"""A stderr that cannot be written to changes neither the exit code nor the run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from undertow.errors import write_stderr
from undertow.store.reader import RunReader

SCRIPT = """
import sys, torch, undertow
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with undertow.watch(model, run_dir=sys.argv[1], every=1, quiet=False):
    for step in range(60):
        loss = model(torch.randn(8, 4)).square().mean() * (float("nan") if step > 30 else 1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def closed_pipe() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.parametrize("stream", [closed_pipe, lambda: os.open("/dev/full", os.O_WRONLY), lambda: None])
def test_the_training_ends_as_it_would_have(tmp_path: Path, stream) -> None:
    writing = stream()
    script = [SCRIPT, str(tmp_path / "run")]
    if writing is None:
        command = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", *script]
    else:
        command = [sys.executable, "-c", *script]
    done = subprocess.run(command, stderr=writing, stdout=subprocess.PIPE, check=False)
    assert done.returncode == 0
    reader = RunReader(tmp_path / "run")
    assert (reader.status, len(reader.steps)) == ("finished", 60)


def test_the_line_comes_after_what_was_written_before(capfd: pytest.CaptureFixture[str]) -> None:
    print("half a line, ", end="", file=sys.stderr)
    write_stderr("and the rest – in full")
    assert capfd.readouterr().err == "half a line, and the rest – in full\n"
