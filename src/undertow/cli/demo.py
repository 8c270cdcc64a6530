"""`undertow demo`: a small training that is broken on purpose, live, and what is wrong with it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from undertow.cli.output import show

if TYPE_CHECKING:
    from rich.console import Console

    from undertow.demos.case import Case
    from undertow.show.terminal.beside import View

DEFAULT_FAULT = "forgotten_detach"
LEAST_STEPS = 240  # enough to watch, a few seconds on one core
_MOST_ROWS = 30
_STILL_ROWS = 16  # of the picture that stays: with the report below it, it fits many a screen

EPILOG = "Example:  undertow demo --fault masked_entropy --steps 120"


@click.command("demo", short_help="Watch a small training that is broken on purpose.", epilog=EPILOG)
@click.option("--fault", default=DEFAULT_FAULT, show_default=True, metavar="NAME", help="Which fault; see --list.")
@click.option("--steps", type=click.IntRange(min=1), default=None, help="How long to train.")
@click.option("--severity", type=click.Choice(["mild", "clear", "extreme"]), default="clear", help="How strong it is.")
@click.option("--list", "show_list", is_flag=True, help="List the faults and stop.")
def command(fault: str, steps: int | None, severity: str, show_list: bool) -> None:
    """Train a small model that is broken on purpose, live in the terminal, then print the diagnosis.

    Needs no network and no data, and is over in seconds. The run is kept like any other.
    """
    trainings = _trainings()
    if show_list:
        for name, training in trainings.items():
            click.echo(f"{name:32} {training.code}  {training.summary}")
        return
    if fault not in trainings:
        raise click.BadParameter(
            f"there is no fault {fault!r}. There are: {', '.join(trainings)}", param_hint="--fault"
        )
    try:
        training = trainings[fault].variant(severity)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--severity") from error
    _watch_and_report(training, steps or max(LEAST_STEPS, training.steps))


def _trainings() -> dict[str, Case]:
    from undertow.errors import UndertowError

    try:
        from undertow.demos.case import registered

        return registered("undertow.demos")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UndertowError(
            "the demo trains a model, and PyTorch is not installed", way_out="Run: pip install 'undertow[torch]'"
        ) from error


def _watch_and_report(training: Case, steps: int) -> None:
    import torch
    from rich.console import Console

    import undertow
    from undertow.settings import Settings
    from undertow.show.report.text import ROWS, report
    from undertow.show.terminal.ability import ability_of
    from undertow.show.terminal.beside import View
    from undertow.show.terminal.camera import Camera
    from undertow.show.terminal.picture import Picture
    from undertow.show.terminal.plain_lines import Lines, still

    torch.set_num_threads(1)  # the model is tiny: a second thread would only wait for the first
    screen = Console(stderr=True)
    if Settings.resolve().disabled:
        screen.print("Undertow is disabled (UNDERTOW_DISABLED), so this training goes unwatched.", highlight=False)
        training.run(steps)
        return

    screen.print(f"{training.name}: {training.summary}", highlight=False, markup=False)
    watch = undertow.watch(None, name=f"demo-{training.name}", every=1, quiet=True)  # every step: a full picture
    folder = watch.folder
    if folder is None:  # a torch that is too old: the watch has said so
        training.run(steps)
        return
    ability = ability_of(sys.stderr)
    view = shown = View(folder, share=0.8, most=_MOST_ROWS, total_steps=steps)
    if not view.is_shown:  # for a log file or a pipe: a line for each tenth of the training
        camera = Camera(undertow.open_run(folder))
        shown = Lines(camera, lambda line: click.echo(line, err=True), ability, steps)
    try:
        with _closed_on_termination(view), shown, watch:
            training.run(steps)
    except KeyboardInterrupt:
        run = undertow.open_run(folder)
        screen.print(f"\nInterrupted after {len(run.steps)} steps; the run is complete up to there.", highlight=False)
        _say_what_next(screen, str(folder))
        raise SystemExit(130) from None
    run = undertow.open_run(folder)
    for line in still(Picture(Camera(run), ability), screen.width, _STILL_ROWS):
        click.echo(line, err=True, color=True)
    screen.print()
    tensors = [layer.path for layer in run.layers.parameters]
    show(report(run.diagnose(), tensors=tensors, rows=ROWS - 4))  # what to do next is to be seen with it
    _say_what_next(screen, str(folder))


@contextmanager
def _closed_on_termination(view: View) -> Generator[None]:
    """Give the terminal back before SIGTERM ends us."""

    def terminated(number: int, frame: object) -> None:
        view.close()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    former = signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _say_what_next(screen: Console, folder: str) -> None:
    screen.print(f"\nThe run is in {folder}", highlight=False, soft_wrap=True)
    screen.print(
        f"Next: undertow report {folder} --details   or   undertow demo --list", highlight=False, soft_wrap=True
    )
