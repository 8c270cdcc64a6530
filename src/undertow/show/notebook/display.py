"""How runs and what is found in them show themselves in a notebook."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from undertow.errors import UndertowError
from undertow.run import Run, open_run
from undertow.show.notebook.cards import CARDS, run_card

Bundle = dict[str, Any]
_WATCH = ("undertow.watch", "Watch")


def html_of_run(run: Run) -> str | None:
    """None, and so the plain text of the run, if it cannot be read."""
    try:
        run.refresh()
        return run_card(run)
    except (UndertowError, OSError):
        return None


def bundle_of_run(run: Run) -> Bundle:
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


def register(shell: Any) -> None:
    """Tell IPython how to show what cannot tell it by itself: plain data, and a training that is being watched."""
    html = shell.display_formatter.formatters["text/html"]
    for (module, kind), card in CARDS.items():
        html.for_type_by_name(module, kind, card)
    html.for_type_by_name(*_WATCH, _html_of_watch)
    shell.display_formatter.mimebundle_formatter.for_type_by_name(*_WATCH, _bundle_of_watch)


def register_here() -> None:
    """In a notebook or in IPython; nothing anywhere else."""
    shell = _shell()
    if shell is not None and getattr(shell, "display_formatter", None) is not None:
        register(shell)


def _html_of_watch(watch: Any) -> str | None:
    run = _run_of(watch)
    return None if run is None else html_of_run(run)


def _bundle_of_watch(watch: Any, include: Any = None, exclude: Any = None) -> Bundle:
    run = _run_of(watch)
    return {} if run is None else bundle_of_run(run)


def _run_of(watch: Any) -> Run | None:
    """What a watch has written so far, if it writes anything. The training is not kept waiting."""
    folder: Path | None = getattr(watch, "folder", None)
    try:
        return None if folder is None else open_run(folder)
    except (UndertowError, OSError):
        return None


def _shell() -> Any:
    module = sys.modules.get("IPython")
    return None if module is None else module.get_ipython()


def _in_kernel() -> bool:
    return getattr(_shell(), "kernel", None) is not None
