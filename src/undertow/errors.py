"""Errors for users: what happened, the offending value, and the way out."""

import contextlib
import os
import sys


class UndertowError(Exception):
    """Base of every error Undertow raises on purpose.

    `code` is stable; `exit_code` is what the command line returns for it.
    """

    code = "UT000"
    exit_code = 2

    def __init__(self, message: str, *, way_out: str = "") -> None:
        self.message = message
        self.way_out = way_out
        super().__init__(f"{message}. {way_out}" if way_out else message)


class SettingError(UndertowError):
    """A value that Undertow cannot use (argument, variable, or configuration file)."""

    code = "UT001"


class UnreadableRunError(UndertowError):
    """A folder or file that is no run, is damaged beyond use, or of a newer format."""

    code = "UT002"
    exit_code = 3


class UnwritableRunError(UndertowError):
    """The run folder cannot be made or written."""

    code = "UT003"


class UnknownNameError(UndertowError):
    """A quantity, layer, code or scalar that this run does not have."""

    code = "UT004"


class CriticalFindingError(UndertowError):
    """Raised into the training loop, only when the user asked for `on_critical="raise"`."""

    code = "UT005"
    exit_code = 1


def write_stderr(line: str) -> None:
    """One line for the user. A stderr that is full, closed or not there is no reason to end a training."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
        if sys.stderr is sys.__stderr__:
            # Past its buffer: what could not be written would stay there, and fail once more when Python ends.
            os.write(sys.stderr.fileno(), f"{line}\n".encode(sys.stderr.encoding, "backslashreplace"))
        else:
            print(line, file=sys.stderr, flush=True)
