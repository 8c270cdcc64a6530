"""`undertow runs`."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from undertow.cli.output import busy, console, print_json, say, show
from undertow.errors import UnreadableRunError
from undertow.schema.addresses import address_of

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
    if given and address_of(root) is None and not root.is_dir():
        raise UnreadableRunError(f"{root} is not a folder", way_out="Give a folder that holds runs")
    with busy(f"looking for runs in {root}"):
        summaries = find_runs(root)
    if as_json:
        print_json([_record(summary) for summary in summaries])
    elif summaries:
        _print_table(summaries, root)
    else:
        say(f"There are no runs in {root}. `undertow run SCRIPT` or `undertow demo` makes one.", err=True)


def _record(summary: RunSummary) -> dict[str, object]:
    same = {key: getattr(summary, key) for key in ("name", "status", "steps", "last_step", "last_loss", "health")}
    folder = summary.address or str(summary.folder)
    return {
        "folder": folder,
        **same,
        "cause": summary.cause or None,
        "created": summary.created or None,
        "problem": summary.problem or None,
    }


# In the order in which they make room on a narrow terminal; the run and its status always stay.
_LEAVES = ("begun", "last loss", "name", "steps", "first finding", "health")
_GAP = 2


def _print_table(summaries: list[RunSummary], root: Path) -> None:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rows = [_row(summary, root) for summary in summaries]
    columns = _fitting(rows, console().width)
    if "first finding" not in columns:  # its code alone may fit
        rows = [row | {"first finding": row["first finding"].partition(" ")[0]} for row in rows]
        columns = _fitting(rows, console().width)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for title in columns:
        right = title in ("steps", "last loss")
        table.add_column(title, justify="right" if right else "left", no_wrap=title != "run", overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[title]) for title in columns))
    problems = [Text(f"{row['run']}: {summary.problem}") for row, summary in zip(rows, summaries) if summary.problem]
    show(Group(table, *([Text(""), *problems] if problems else [])))


def _row(summary: RunSummary, root: Path) -> dict[str, str]:
    folder = summary.folder.relative_to(root) if summary.folder.is_relative_to(root) else summary.folder
    loss = summary.last_loss
    damaged = ", damaged" if summary.problem and summary.status != "unreadable" else ""
    return {
        "run": str(folder) if str(folder) != "." else str(summary.folder),
        "name": summary.name,
        "status": summary.status + damaged,
        "health": summary.health or "",
        "first finding": summary.cause,
        "steps": f"{summary.steps:,}",
        "last loss": "" if loss is None else f"{loss:.4g}" if math.isfinite(loss) else str(loss),
        "begun": time.strftime("%Y-%m-%d %H:%M", time.localtime(summary.created)) if summary.created else "",
    }


def _fitting(rows: list[dict[str, str]], width: int) -> list[str]:
    """The columns that fit side by side without folding."""
    widths = {title: max(len(title), *(len(row[title]) for row in rows)) for title in rows[0]}
    columns = list(widths)
    told = all(row["name"] in row["run"] for row in rows)  # the folder already says what it is called
    for leaving in sorted(_LEAVES, key=lambda title: not (told and title == "name")):
        if sum(widths[title] + _GAP for title in columns) - _GAP <= width:
            break
        columns.remove(leaving)
    return columns
