"""A live view of a run in a notebook: the page of a report, which is sent the run anew as it grows.

While a training keeps the kernel busy nobody can ask it anything; so it is told, from a thread that takes no more than
a hundredth of the time.
"""

import threading
import time
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from undertow.errors import UndertowError
from undertow.run import Run, open_run
from undertow.show.page.page import page
from undertow.show.page.pictures import Allowance
from undertow.show.page.snapshot import Extent, snapshot
from undertow.views.verdict import Verdict, judge

_SHARE = 0.01  # of the time, for the thread
_URGENT_SHARE = 0.03  # when something was found
_PAUSE = 1.0  # seconds between two looks
_SMALL = Allowance(everything=600_000, others=250_000, first_tiles=2, asked_tiles=1, other_tiles=1, most=4, densities=0)
_EXTENT = Extent(pages=("run", "findings"), allowance=_SMALL, points=512, scalars=12)
_VIEW = "application/vnd.jupyter.widget-view+json"


class LiveView(anywidget.AnyWidget):
    """`page` stays as it is; `news` is the run, packed as for a report."""

    _esm = Path(__file__).with_name("widget.js")
    page = traitlets.Unicode().tag(sync=True)
    news = traitlets.Bytes().tag(sync=True)


class Follower(threading.Thread):
    """Looks at a run until it ends, or nobody can be told any more."""

    def __init__(self, view: LiveView, folder: Path) -> None:
        super().__init__(name="undertow-notebook", daemon=True)
        self._view = view
        self._run = open_run(folder)  # one of its own: readers are for one thread at a time
        self._verdict: tuple[str, Verdict] | None = None

    def tell(self) -> None:
        """What there is, once."""
        status = self._run.status
        if self._verdict is None or status == "running" or self._verdict[0] != status:
            self._verdict = status, judge(self._run)  # of a run that is written, its journal is read: that is quick
        self._view.news = snapshot(self._run, self._verdict[1], _EXTENT)

    def run(self) -> None:
        began, is_running, has_news, told = time.monotonic(), True, False, 0
        while is_running and self._view.comm is not None:
            time.sleep(_PAUSE)
            try:
                is_running = self._run.status == "running"  # asked first: of what ends later somebody must still tell
                has_news |= self._run.refresh()
                share = _SHARE if len(self._run.events) == told else _URGENT_SHARE
                is_paid_for = time.thread_time() <= share * (time.monotonic() - began)
                if not is_running or (has_news and is_paid_for):
                    self.tell()
                    has_news, told = False, len(self._run.events)
            except (UndertowError, OSError):
                return  # the folder has gone


def live_view(run: Run) -> dict[str, Any]:
    """What a notebook shows in place of text; it goes on by itself."""
    view = LiveView(page=page(None))
    follower = Follower(view, run.folder)
    follower.tell()
    if run.status == "running":
        follower.start()
    return {_VIEW: {"version_major": 2, "version_minor": 0, "model_id": view.model_id}}
