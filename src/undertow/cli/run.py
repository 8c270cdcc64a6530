"""`undertow run`: any training script, unchanged, watched."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from undertow.cli.launch import check_script, own_frames_removed, run_module, run_script
from undertow.errors import UndertowError, write_stderr
from undertow.settings import Settings

if TYPE_CHECKING:
    from undertow.show.terminal.beside import View

EPILOG = """Example: undertow run --every 10 train.py --epochs 3"""


@click.command("run", epilog=EPILOG, context_settings={"allow_interspersed_args": False})
@click.option(
    "--run-dir",
    metavar="DIR",
    help="The run's own folder, made with its parents. Default: a new one under UNDERTOW_DIR.",
)
@click.option("--name", help="A label for the run.")
@click.option("--every", metavar="N|auto", help="Measure every N steps; auto stays within the budget.")
@click.option("--budget", metavar="SHARE", help="Share of the step time that measuring may cost. Default: 0.01.")
@click.option("--budget-floor", metavar="SECONDS", help="What measuring may cost in any case. Default: 0.001.")
@click.option("--include", metavar="GLOB", multiple=True, help="Watch only layers that match.")
@click.option("--exclude", metavar="GLOB", multiple=True, help="Do not watch layers that match.")
@click.option(
    "--activations", metavar="auto|yes|no|N", help="Measure activations: by budget, always, never, every N steps."
)
@click.option("--on-critical", metavar="warn|ignore|raise", help="What to do when a critical finding opens.")
@click.option("--disk-budget", metavar="BYTES", help="Thin old frames beyond this size (2GB by default).")
@click.option("--resume", is_flag=True, default=None, help="Continue the run in --run-dir.")
@click.option(
    "--chronicler",
    metavar="auto|never|always",
    help="Run the recorder in a process of its own: when it pays, never, always.",
)
@click.option("--sink", "sinks", metavar="KIND[:TARGET]", multiple=True, help="Also send metrics and findings there.")
@click.option(
    "--no-command-line",
    "command_line",
    flag_value=False,
    default=None,
    help="Leave the command line out of the run; its secrets never are in it.",
)
@click.option(
    "--no-source", "source", flag_value=False, default=None, help="Leave the lines of the program out of the run."
)
@click.option("--xray", is_flag=True, default=None, help="Note the line of every operation from the start.")
@click.option("--shared", is_flag=True, default=None, help="Let others read the run, as far as the umask lets them.")
@click.option("--quiet", is_flag=True, default=None, help="Say nothing.")
@click.option(
    "--live/--no-live",
    default=None,
    envvar="UNDERTOW_LIVE",
    help="Draw the run below the script's output. Default: on a terminal, as long as no progress bar is open.",
)
@click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module, as in python -m.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    script: str, arguments: tuple[str, ...], module: bool, live: bool | None, **options: Any
) -> Callable[[], None]:
    """Run a PyTorch training SCRIPT with its ARGUMENTS, unchanged and watched.

    The script's own output, exit code and traceback stay as they would be; Undertow writes only to stderr.
    """
    if not module:
        check_script(script)
    for several in ("include", "exclude", "sinks"):
        options[several] = list(options[several]) or None
    settings = Settings.resolve(**options)
    target = run_module if module else run_script
    return lambda: watched(settings, lambda: target(script, arguments), live)


def watched(settings: Settings, work: Callable[[], None], live: bool | None = None) -> None:
    """Run `work` under a watch; whatever it raises goes on to the interpreter, as if we were not there."""
    if settings.disabled:
        _as_if_alone(work)
        return
    if importlib.util.find_spec("torch") is None:
        write_stderr("undertow: torch is not installed, so there is nothing to watch")
        _as_if_alone(work)
        return
    from undertow.recording.script_error import described
    from undertow.recording.signals import close_on_termination
    from undertow.schema.facts import RunStatus
    from undertow.watch import watch_command

    watch = watch_command(settings)
    folder = watch.folder  # of several ranks, only the first writes a run
    view = view_of(folder, live) if folder is not None and live is not False and not settings.quiet else None

    def terminated() -> None:
        if view is not None:
            view.close()
        watch.close(RunStatus.INTERRUPTED, "the process was asked to end (SIGTERM)")

    close_on_termination(terminated)
    try:
        with view or nullcontext():
            _as_if_alone(work)
    except SystemExit as leaving:
        failed = leaving.code not in (None, 0)
        watch.close(RunStatus.FAILED if failed else RunStatus.FINISHED, f"exit code {leaving.code}" if failed else "")
        raise
    except KeyboardInterrupt:
        watch.close(RunStatus.INTERRUPTED, "interrupted by the user")
        raise
    except UndertowError as error:
        watch.close(RunStatus.FAILED, str(error))
        raise
    except BaseException as error:
        watch.close(RunStatus.FAILED, described(error))
        raise
    else:
        try:
            watch.close()
        except KeyboardInterrupt:  # the script is over, and somebody does not want to wait for our last words
            raise SystemExit(130) from None


def view_of(folder: Path, live: bool | None) -> View:
    """A picture below the script's output, if there is a terminal to draw on."""
    from undertow.show.terminal.beside import View

    return View(folder, gives_way=not live)


def _as_if_alone(work: Callable[[], None]) -> None:
    """Show an uncaught exception now, without our frames, and let the interpreter end in its usual way."""
    try:
        work()
    except (SystemExit, UndertowError):
        raise
    except BaseException as error:
        error.__traceback__ = trace = own_frames_removed(error)
        sys.excepthook(type(error), error, trace)
        sys.excepthook = _already_shown
        raise


def _already_shown(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    pass
