"""Where a new run goes, and the link that leads to the newest one."""

import contextlib
import os
import re
import time
from pathlib import Path

from undertow.errors import UnwritableRunError

LATEST = "latest"
PRIVATE = 0o700  # a folder that only its owner may enter


def new_run_folder(root: Path, name: str = "", mode: int = PRIVATE) -> Path:
    """Make a folder for a run: `20261115-143002-name`, with a number behind it when that one is taken."""
    label = re.sub(r"[^\w.+=-]+", "-", name).strip("-.")[:80]
    stem = time.strftime("%Y%m%d-%H%M%S") + (f"-{label}" if label else "")
    number = 1
    while True:
        folder = Path(root) / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(mode, parents=True)
        except FileExistsError:
            number += 1
            if number > 10_000:
                raise UnwritableRunError(f"no free name for a run like {stem!r} in {root}") from None
        except OSError as error:
            raise UnwritableRunError(
                f"the run folder {folder} cannot be made: {error.strerror}",
                way_out="Choose a folder you may write to, with `run_dir` or UNDERTOW_DIR.",
            ) from None
        else:
            return folder


def point_latest(root: Path, folder: Path) -> bool:
    """Let `latest` lead to the folder. False where links are not possible; a run does not need one."""
    root = Path(root)
    temporary = root / f".{LATEST}.{os.getpid()}.new"
    try:
        if (root / LATEST).is_dir() and not (root / LATEST).is_symlink():
            return False  # somebody's own folder of that name
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        temporary.symlink_to(os.path.relpath(folder, root), target_is_directory=True)
        os.replace(temporary, root / LATEST)
    except (OSError, NotImplementedError, ValueError):
        with contextlib.suppress(OSError):
            temporary.unlink()
        return False
    return True
