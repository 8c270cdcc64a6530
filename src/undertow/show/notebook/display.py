"""How runs show themselves in a notebook."""

import sys
from pathlib import Path
from typing import Any

from undertow.errors import UndertowError
from undertow.run import Run, open_run
from undertow.show.notebook.cards import run_card


def html_of_run(run: Run) -> str | None:
    """None, and so the plain text of the run, if it cannot be read."""
    try:
        run.refresh()
        return run_card(run)
    except (UndertowError, OSError):
        return None


def bundle_of_run(run: Run) -> dict[str, Any]:
    """A live view, where there is something that can show it; the notebook adds the rest."""
    if not _in_kernel():
        return {}
    try:
        from undertow.show.notebook.widget import live_view
    except ImportError:  # anywidget is an extra
        return {}
    try:
        return live_view(run)
    except (UndertowError, OSError):
        return {}


def run_of_watch(watch: Any) -> Run | None:
    """What a watch has written so far, if it writes anything. The training is not kept waiting."""
    folder: Path | None = getattr(watch, "folder", None)
    try:
        return None if folder is None else open_run(folder)
    except (UndertowError, OSError):
        return None


def _in_kernel() -> bool:
    module = sys.modules.get("IPython")
    return module is not None and getattr(module.get_ipython(), "kernel", None) is not None
