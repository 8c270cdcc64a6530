"""A run folder that is cut short or copied over while somebody reads it: answers or words, never a dead process."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from pathlib import Path

import pytest
from tests import limited
from tests.crash.hostile_runs import make_run

from undertow.errors import UndertowError
from undertow.store.reader import RunReader

READ_IT_OVER_AND_OVER = """
import sys, time
from pathlib import Path
from tests.crash.test_changed_under_our_eyes import change_it, read_all
from undertow.errors import UndertowError

folder, model = Path(sys.argv[1]), Path(sys.argv[2])
ending = change_it(folder, model)
until, read = time.monotonic() + 3, 0
while time.monotonic() < until:
    try:
        read += read_all(folder)
    except UndertowError:
        pass
ending.set()
print(read)
"""


def read_all(folder: Path) -> int:
    reader = RunReader(folder)
    for quantity in ("gradient_norm", "update_norm"):
        reader.matrix(quantity)
        reader.window(quantity, 0, 10**6, 7)
    return len(list(reader.frames())) + len(reader.scalars("loss"))


def change_it(folder: Path, model: Path) -> threading.Event:
    """Until the event is set: cut every file short, and copy the old one over it, as `cp -r` does."""
    ending = threading.Event()
    files = [path.relative_to(model) for path in model.rglob("*.arrows")]

    def work() -> None:
        number = 0
        while not ending.is_set():
            for name in files:
                number += 1
                os.truncate(folder / name, (model / name).stat().st_size * (number % 5) // 5)
                shutil.copyfile(model / name, folder / name)

    threading.Thread(target=work, daemon=True).start()
    return ending


def test_files_that_are_copied_over_while_they_are_read(tmp_path: Path) -> None:
    model = make_run(tmp_path / "model", frames=600)
    shutil.copytree(model, tmp_path / "run")
    ended = limited.python("-c", READ_IT_OVER_AND_OVER, tmp_path / "run", model)
    assert ended.code == 0, ended.err
    assert int(ended.out) > 0


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_what_was_opened_and_then_cut_short(tmp_path: Path, share: float) -> None:
    """A map of the file, as it once was, would end the process here."""
    folder = make_run(tmp_path / "run", frames=600)
    reader = RunReader(folder)
    reader.matrix("gradient_norm")
    for path in folder.rglob("*.arrows"):
        os.truncate(path, int(path.stat().st_size * share))
    with contextlib.suppress(UndertowError):
        assert len(list(reader.frames())) <= 600
    with contextlib.suppress(UndertowError):
        assert len(reader.matrix("gradient_norm")) == len(reader.steps)
    with contextlib.suppress(UndertowError):
        reader.window("update_norm", 0, 2000, 5)
