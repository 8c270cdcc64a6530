"""Runs a user's script the way `python` itself would: same arguments, same `__main__`, same traceback."""

import builtins
import importlib.machinery
import os
import runpy
import sys
import types
from collections.abc import Sequence
from pathlib import Path

from undertow.errors import SettingError


def check_script(script: str) -> None:
    if not os.path.exists(script):
        raise SettingError(f"the script {script!r} does not exist", way_out="Check the path, or use -m for a module")


def run_script(script: str, arguments: Sequence[str]) -> None:
    """Like `python SCRIPT ARGUMENTS…`. Whatever the script raises comes out of here."""
    path = Path(script)
    if path.is_dir() or path.suffix in (".zip", ".pyz"):
        sys.argv = [script, *arguments]
        sys.path.insert(0, str(path))
        run_module("__main__", arguments, first=script)
        return
    source = path.read_bytes()
    full = os.path.abspath(script)
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=full,
        __builtins__=builtins,
        __loader__=importlib.machinery.SourceFileLoader("__main__", full),
        __package__=None,
        __cached__=None,
        __annotations__={},
    )
    main.__spec__ = None
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.realpath(script))
    sys.modules["__main__"] = main
    exec(compile(source, full, "exec", dont_inherit=True), main.__dict__)


def run_module(name: str, arguments: Sequence[str], first: str | None = None) -> None:
    """Like `python -m NAME ARGUMENTS…`."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    if first is None:
        sys.argv = ["-m", *arguments]
        sys.path[0] = os.getcwd()
    run_as_main = getattr(runpy, "_run_module_as_main", None)
    if run_as_main is not None:
        run_as_main(name)
    else:
        runpy.run_module(name, run_name="__main__", alter_sys=True)


def own_frames_removed(error: BaseException) -> types.TracebackType | None:
    """The traceback without Undertow's frames at its start, as the user would see it without us."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("undertow."):
        trace = trace.tb_next
    return trace
