"""`undertow export`."""

from __future__ import annotations

import fnmatch
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from undertow.cli.output import RUN_HELP, busy, run_argument
from undertow.errors import UnknownNameError, UnwritableRunError

if TYPE_CHECKING:
    from undertow.run import Run

FORMATS = ("json", "csv", "parquet")


@click.command(
    help="Write the numbers of a run as one long table: a row per step and layer, a column per quantity.\n\n"
    f"{RUN_HELP}",
    epilog="Example:  undertow export latest --to csv --layers 'blocks.0.*' --quantity gradient_norm -o norms.csv",
)
@run_argument
@click.option("--to", "kind", type=click.Choice(FORMATS), required=True, help="The file format.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The file; stdout without it.")
@click.option("--layers", "globs", multiple=True, metavar="GLOB", help="Only layers whose path fits; may be repeated.")
@click.option("--quantity", "quantities", multiple=True, metavar="NAME", help="Only this quantity; may be repeated.")
def command(run: str, kind: str, output: Path | None, globs: tuple[str, ...], quantities: tuple[str, ...]) -> None:
    from undertow.run import open_run

    if output is None and kind == "parquet" and sys.stdout.isatty():
        raise click.UsageError("Parquet is not for the eye: name a file with -o FILE, or pipe it.")
    opened = open_run(run)
    layers = _layers(opened, globs) if globs else None
    with busy(f"exporting {len(opened.steps):,} steps"):
        if output is None:
            _to_stdout(opened, kind, layers, quantities)
        else:
            _to_file(opened, kind, output, layers, quantities)
            click.echo(f"wrote {output}", err=True)


def _layers(run: Run, globs: tuple[str, ...]) -> list[int]:
    for glob in globs:
        if not any(fnmatch.fnmatchcase(path, glob) for path in run.layers.paths):
            some = ", ".join(run.layers.paths[:4]) or "none"
            raise UnknownNameError(f"no layer of this run fits {glob!r}", way_out=f"Its layers are: {some}, …")
    return [layer.id for layer in run.layers if any(fnmatch.fnmatchcase(layer.path, glob) for glob in globs)]


def _write(run: Run, kind: str, path: Path, layers: list[int] | None, quantities: tuple[str, ...]) -> None:
    from undertow.store import exports

    write = {"json": exports.export_json, "csv": exports.export_csv, "parquet": exports.export_parquet}[kind]
    write(run.reader, path, layers=layers, quantities=quantities or None)


def _to_file(run: Run, kind: str, output: Path, layers: list[int] | None, quantities: tuple[str, ...]) -> None:
    """Through a neighbour that takes the name when it is whole: an old file is never half overwritten."""
    partial = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        _write(run, kind, partial, layers, quantities)
        partial.replace(output)
    except OSError as problem:
        raise UnwritableRunError(
            f"{output} cannot be written: {problem.strerror or problem}", way_out="Choose another file with -o"
        ) from None
    finally:
        partial.unlink(missing_ok=True)


def _to_stdout(run: Run, kind: str, layers: list[int] | None, quantities: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory(prefix="undertow-") as folder:
        path = Path(folder) / f"export.{kind}"
        _write(run, kind, path, layers, quantities)
        with path.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
