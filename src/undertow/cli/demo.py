"""`undertow demo`: a small training that is broken on purpose, live, and what is wrong with it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from undertow.cli.output import show

if TYPE_CHECKING:
    from rich.console import Console

    from undertow.faults.training import Training
    from undertow.schema.findings import Finding

DEFAULT_FAULT = "forgotten_detach"
LEAST_STEPS = 240  # enough to watch, a few seconds on one core

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


def _trainings() -> dict[str, Training]:
    from undertow.errors import UndertowError

    try:
        from undertow.faults.training import hospital

        return hospital()
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UndertowError(
            "the demo trains a model, and PyTorch is not installed", way_out="Run: pip install 'undertow[torch]'"
        ) from error


def _watch_and_report(training: Training, steps: int) -> None:
    import torch
    from rich.console import Console

    import undertow
    from undertow.settings import Settings
    from undertow.show.report.text import ROWS, report
    from undertow.show.terminal.live import Picture, follow

    torch.set_num_threads(1)  # the model is tiny: a second thread would only wait for the first
    screen = Console(stderr=True)
    if Settings.resolve().disabled:
        screen.print("Undertow is disabled (UNDERTOW_DISABLED), so this training goes unwatched.", highlight=False)
        training.run(steps)
        return

    watch = undertow.watch(None, name=f"demo-{training.name}", every=1, quiet=True)  # every step: a full picture
    run = undertow.open_run(watch.folder)
    picture = Picture(run, f"{training.name}: {training.summary}", steps)
    live = _may_draw_in_place(screen)

    def announce(finding: Finding) -> None:
        if finding.severity.is_alarm and not picture.verdict:
            picture.verdict = f"{finding.code} found at step {finding.detected_step}"

    watch.on_finding(announce)
    try:
        with follow(picture, screen, live), watch:
            training.run(steps)
    except KeyboardInterrupt:
        run.refresh()
        screen.print(f"\nInterrupted after {len(run.steps)} steps; the run is complete up to there.", highlight=False)
        _say_what_next(screen, str(watch.folder))
        raise SystemExit(130) from None
    if not live:
        screen.print(picture)
    screen.print()
    run = undertow.open_run(watch.folder)
    tensors = [layer.path for layer in run.layers.parameters]
    show(report(run.diagnose(), tensors=tensors, rows=ROWS - 4))  # what to do next is to be seen with it
    _say_what_next(screen, str(watch.folder))


def _may_draw_in_place(screen: Console) -> bool:
    """Only on a real terminal that was not asked to be plain."""
    return screen.is_terminal and not os.environ.get("CI") and not os.environ.get("NO_COLOR")


def _say_what_next(screen: Console, folder: str) -> None:
    screen.print(f"\nThe run is in {folder}", highlight=False, soft_wrap=True)
    screen.print(
        f"Next: undertow report {folder} --details   or   undertow demo --list", highlight=False, soft_wrap=True
    )
