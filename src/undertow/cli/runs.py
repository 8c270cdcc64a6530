"""`undertow runs`."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from undertow.cli.output import busy, show
from undertow.errors import UnreadableRunError

if TYPE_CHECKING:
    from undertow.store.listing import RunSummary


@click.command(
    help="List the runs below ROOT (default: UNDERTOW_DIR, else runs/), the newest first.",
    epilog="Example:  undertow runs experiments/ --json",
)
@click.argument("root", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="A JSON list, one object per run.")
def command(root: Path | None, as_json: bool) -> None:
    from undertow.settings import Settings
    from undertow.store.listing import find_runs

    given = root is not None
    root = root if root is not None else Settings.resolve().directory
    if given and not root.is_dir():
        raise UnreadableRunError(f"{root} is not a folder", way_out="Give a folder that holds runs")
    with busy(f"looking for runs in {root}"):
        summaries = find_runs(root)
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode([_record(s) for s in summaries]), indent=2).decode())
    elif summaries:
        _print_table(summaries, root)
    else:
        click.echo(f"There are no runs in {root}. `undertow run SCRIPT` or `undertow demo` makes one.", err=True)


def _record(summary: RunSummary) -> dict[str, object]:
    return {
        "folder": str(summary.folder),
        "name": summary.name,
        "status": summary.status,
        "steps": summary.steps,
        "last_step": summary.last_step,
        "last_loss": summary.last_loss,
        "created": summary.created or None,
        "problem": summary.problem or None,
    }


def _print_table(summaries: list[RunSummary], root: Path) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, pad_edge=False)
    for title in ("run", "name", "status"):
        table.add_column(title, overflow="fold")
    for title in ("steps", "last loss", "begun"):
        table.add_column(title, justify="right", no_wrap=True)
    for summary in summaries:
        folder = summary.folder.relative_to(root) if summary.folder.is_relative_to(root) else summary.folder
        loss = summary.last_loss
        table.add_row(
            str(folder) if str(folder) != "." else str(summary.folder),
            summary.name,
            f"{summary.status}: {summary.problem}" if summary.problem else summary.status,
            f"{summary.steps:,}",
            "" if loss is None else f"{loss:.4g}" if math.isfinite(loss) else str(loss),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(summary.created)) if summary.created else "",
        )
    show(table)
