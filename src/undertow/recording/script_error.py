"""How a script failed, in one line: the exception, and the line of the user's program that it came from."""

import os
import sysconfig
import traceback
from pathlib import Path

_LONGEST = 500  # characters of what an exception says
# Our own taps lie between the user's line and torch's.
_OF_OTHERS = (str(Path(__file__).parents[1]), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))


def described(error: BaseException) -> str:
    text = str(error)
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    lines = traceback.extract_tb(error.__traceback__)
    own = [line for line in lines if not line.filename.startswith((*_OF_OTHERS, "<frozen"))]
    place = f" ({_shortened(own[-1].filename)}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {text}{place}" if text else f"{type(error).__name__}{place}"


def _shortened(path: str) -> str:
    """From the working folder, if it is in there."""
    try:
        return path.removeprefix(os.path.join(os.getcwd(), ""))
    except OSError:  # the folder is gone
        return path
