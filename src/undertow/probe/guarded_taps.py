"""What a listener says to the taps, made safe: an error of ours never reaches the user's loop."""

import time
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from typing import Any

from undertow.errors import CriticalFindingError
from undertow.probe.signal_handlers import raised_by_handler
from undertow.probe.step_timer import Stopwatch
from undertow.probe.training_thread import TrainingThread
from undertow.probe.watched_layers import WatchedLayers

_now = time.perf_counter


class GuardedTaps:
    def __init__(
        self,
        thread: TrainingThread,
        layers: WatchedLayers,
        watch: Stopwatch,
        find_again: Callable[[], None],
        stop: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """`find_again` is called first where watched tensors are gone; `stop` and `failed` after an error."""
        self._thread, self._layers, self._watch = thread, layers, watch
        self._find_again, self._stop, self._failed = find_again, stop, failed
        self.are_closed = False

    def tap(self, work: Callable[..., object], in_any_thread: bool = False, reads: bool = True) -> Callable[..., None]:
        watch, layers, thread = self._watch, self._layers, self._thread

        def tap(*arguments: Any) -> None:
            if self.are_closed:
                return
            began = _now()
            try:
                is_another = get_ident() != thread.ident and not in_any_thread
                if is_another:
                    thread.others.acquire()
                try:
                    if not is_another or thread.takes_over(*arguments):
                        thread.in_tap = True
                        if layers.have_gone and reads:
                            self._find_again()
                        work(*arguments)
                        thread.in_tap = False
                finally:
                    if is_another:
                        thread.others.release()
            except CriticalFindingError:  # what the user has asked for
                self._stop()
                raise
            except Exception as error:
                if not self.are_closed:  # else another thread has, in the middle of this
                    with suppress(Exception):
                        self._stop()
                    with suppress(Exception):
                        self._failed(error)
                if raised_by_handler(error):
                    raise
            watch.seconds += _now() - began

        return tap
