"""`undertow weights`."""

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

import click

from undertow.cli.output import console, show


@click.command(
    help="""The health of the weights in a checkpoint, and how far they moved from another. No model class needed.

    CHECKPOINT is a .safetensors file, a file of torch.save, an index of shards, or the folder of a sharded or
    distributed checkpoint. Nothing that is pickled is ever run. Under torchrun the tensors are shared out among the
    processes, and the first one prints the report: torchrun --nproc-per-node 8 -m undertow weights CHECKPOINT.""",
    epilog="Example:  undertow weights step-2000.safetensors --against step-1000.safetensors",
)
@click.argument("checkpoint", metavar="CHECKPOINT")
@click.option("--against", metavar="CHECKPOINT", help="An earlier checkpoint: say how far each tensor moved.")
@click.option("--json", "as_json", is_flag=True, help="Every number of every tensor as JSON.")
@click.option("--all", "all_tensors", is_flag=True, help="A line for each tensor.")
def command(checkpoint: str, against: str | None, as_json: bool, all_tensors: bool) -> None:
    from undertow.checkpoints.process_group import team_here
    from undertow.components.checkpoint_weights import weigh
    from undertow.show.report.checkpoint_report import weights_report, weights_to_json

    with team_here() as team, _bar(team is None or team.leads) as progress:
        report = weigh(checkpoint, against, team, progress=progress)
    if report is None:
        return  # the first process has it
    if as_json:
        click.echo(weights_to_json(report))
    else:
        show(weights_report(report, all_tensors=all_tensors))


@contextmanager
def _bar(wanted: bool) -> Generator[Callable[[int, int, str], None] | None]:
    """A bar on stderr while tensors are read; nothing where nobody looks."""
    if not wanted or not sys.stderr.isatty() or os.environ.get("CI") or os.environ.get("UNDERTOW_QUIET"):
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("reading"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[path]}", markup=False),
    )
    with Progress(*columns, console=console(to_stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, path="")

        def progress(done: int, total: int, path: str) -> None:
            bar.update(task, completed=done, total=total, path=path)

        yield progress
