"""Function modes that were entered in the user's thread, and are left there as soon as they are on top again."""

from threading import get_ident
from typing import Any

from torch.overrides import _get_current_function_mode, _pop_mode, _push_mode

from undertow.probe.source.xray import XRay

_top: Any = _get_current_function_mode


def other_mode() -> bool:
    """Whether one is active: a default device is one, too."""
    return _top() is not None


class EnteredModes:
    def __init__(self) -> None:
        self._stack: list[tuple[int, XRay]] = []  # with the thread

    @property
    def are_entered(self) -> bool:
        return bool(self._stack)

    def enter(self, mode: XRay) -> None:
        self._stack.append((get_ident(), mode))
        _push_mode(mode)

    def end(self, mode: XRay) -> None:
        mode.is_active, mode.is_over = False, True
        self.leave()

    def end_all(self) -> None:
        for _, mode in self._stack:
            mode.is_active, mode.is_over = False, True
        self.leave()

    def leave(self) -> None:
        """Those that are over. The user's own modes end in their order: one of ours that is below them waits."""
        while self._stack:
            thread, mode = self._stack[-1]
            if not mode.is_over or thread != get_ident() or _top() is not mode:
                return
            _pop_mode()
            self._stack.pop()
