"""Other people's progress bars: is one open, and how to say something without tearing it."""

import contextlib
import sys
from typing import Any, cast

from undertow.errors import write_stderr


def bar_is_open() -> bool:
    """A bar of tqdm, or a live display of rich, in this process. Nothing is imported to find out."""
    streams: tuple[object, ...] = (sys.stdout, sys.stderr)
    return bool(_tqdm_bars()) or any(type(stream).__module__ == "rich.file_proxy" for stream in streams)


def say(line: str) -> None:
    """One line on stderr, above a bar of tqdm if there is one. (Rich puts such lines above its display by itself.)"""
    if _tqdm_bars():
        with contextlib.suppress(Exception):  # another version of it: a torn bar is better than a lost message
            cast(Any, sys.modules["tqdm.std"]).tqdm.write(line, file=sys.stderr)
            sys.stderr.flush()
            return
    write_stderr(line)


def _tqdm_bars() -> list[object]:
    """The bars that draw on a terminal now."""
    module: Any = sys.modules.get("tqdm.std")
    try:
        bars = list(getattr(getattr(module, "tqdm", None), "_instances", ()))
        return [bar for bar in bars if not getattr(bar, "disable", True) and sys.stderr.isatty()]
    except Exception:  # a bar was opened or closed while we looked, or stderr is something else: look again later
        return []
