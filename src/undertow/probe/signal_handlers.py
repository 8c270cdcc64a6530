"""Errors that are the program's own although they come up in our work: its signal handlers raised them."""

import functools
import signal
from types import CodeType
from typing import Any


def raised_by_handler(error: BaseException) -> bool:
    """Whether a signal handler of the program is on the way that an error has taken: a time limit, say. Python runs
    handlers between any two instructions, ours as well, and whoever waits for the error must get it.
    """
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _code_of(handler: Any) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    handler = getattr(handler, "__func__", handler)
    if not hasattr(handler, "__code__"):  # an object that can be called
        handler = vars(type(handler)).get("__call__")
    return getattr(handler, "__code__", None)
