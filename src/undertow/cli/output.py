"""Where words go: results to stdout, messages to stderr, both by the user's terminal and wishes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderResult

# All but line feeds and tabs that could steer a terminal or turn the order of letters round.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """Names and reasons in a run or a checkpoint come from anywhere: what could steer a terminal is written as JSON
    writes it, so that JSON stays what it was.
    """
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def say(text: str, *, err: bool = False, end: str = "\n") -> None:
    """Everything that is not drawn by a console."""
    click.echo(plain(text) + end, nl=False, err=err)


def console(*, to_stderr: bool = False) -> Console:
    """Honours NO_COLOR and COLUMNS. No markup: layer paths may hold brackets."""
    from rich.console import Console, RenderHook

    class Hook(RenderHook):
        def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
            return [_Plain(one) for one in renderables]

    stream = sys.stderr if to_stderr else sys.stdout
    out = Console(file=stream, markup=False, highlight=False, emoji=False, soft_wrap=False)
    out.push_render_hook(Hook())
    return out


@dataclass(frozen=True, slots=True)
class _Plain:
    """Text is cleaned when it is laid out: colours and movements of the cursor are no text yet."""

    inner: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in console.render(self.inner, options):
            yield part if part.control else type(part)(plain(part.text), part.style)


def show(renderable: RenderableType) -> None:
    """To stdout; without the blanks that fill up lines where the reader is a file or a program."""
    out = console()
    if out.is_terminal:
        out.print(renderable)
        return
    with out.capture() as captured:
        out.print(renderable)
    # What a console shows is clean, and has colours of its own where somebody forces them.
    click.echo("\n".join(line.rstrip() for line in captured.get().split("\n")), nl=False)


def print_json(record: object) -> None:
    """Indented, for people as well. msgspec writes NaN and infinity as null: strict JSON has no word for them."""
    import msgspec

    say(msgspec.json.format(msgspec.json.encode(record), indent=2).decode())


def _nobody_looks() -> bool:
    return not sys.stderr.isatty() or bool(os.environ.get("CI") or os.environ.get("UNDERTOW_QUIET"))


def _tell_nobody(*words: object) -> None: ...


@contextmanager
def busy(message: str) -> Generator[Callable[[str], None]]:
    """A sign of life on stderr while something takes long; nothing where nobody looks. Call it to say what is next."""
    if _nobody_looks():
        yield _tell_nobody
        return
    with console(to_stderr=True).status(plain(message)) as status:
        yield lambda message: status.update(plain(message))


@contextmanager
def bar(label: str, *, in_bytes: bool = False, wanted: bool = True) -> Generator[Callable[..., None]]:
    """The same with a bar. Call it with how much is done, how much there is, and what it is about now."""
    if _nobody_looks() or not wanted:
        yield _tell_nobody
        return
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    amount = DownloadColumn() if in_bytes else MofNCompleteColumn()
    what = TextColumn("{task.fields[what]}", markup=False)
    columns = (TextColumn(label), BarColumn(), amount, TimeRemainingColumn(), what)
    with Progress(*columns, console=console(to_stderr=True), transient=True) as shown:
        task = shown.add_task("", total=None, what="")

        def update(done: int, total: int, what: str = "") -> None:
            shown.update(task, completed=done, total=total, what=plain(what))

        yield update


RUN_HELP = "RUN is a run folder, the name of a run under UNDERTOW_DIR (default runs/), or latest."

run_argument = click.argument("run", metavar="RUN")
