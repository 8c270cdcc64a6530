"""Where words go: results to stdout, messages to stderr, both by the user's terminal and wishes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def console(*, to_stderr: bool = False) -> Console:
    """Honours NO_COLOR and COLUMNS. No markup: layer paths may hold brackets."""
    from rich.console import Console

    stream = sys.stderr if to_stderr else sys.stdout
    return Console(file=stream, markup=False, highlight=False, emoji=False, soft_wrap=False)


def show(renderable: RenderableType) -> None:
    """To stdout; without the blanks that fill up lines where the reader is a file or a program."""
    out = console()
    if out.is_terminal:
        out.print(renderable)
        return
    with out.capture() as captured:
        out.print(renderable)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


@contextmanager
def busy(message: str) -> Generator[Callable[[str], None]]:
    """A sign of life on stderr while something takes long; nothing where nobody looks. Call it to say what is next."""
    if not sys.stderr.isatty() or os.environ.get("CI") or os.environ.get("UNDERTOW_QUIET"):
        yield lambda message: None
        return
    with console(to_stderr=True).status(message) as status:
        yield status.update


RUN_HELP = "RUN is a run folder, the name of a run under UNDERTOW_DIR (default runs/), or latest."

run_argument = click.argument("run", metavar="RUN")
