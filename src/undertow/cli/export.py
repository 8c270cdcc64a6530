"""`undertow export`."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from undertow.cli.output import RUN_HELP, bar, busy, run_argument, say
from undertow.errors import UnknownNameError, UnwritableRunError

if TYPE_CHECKING:
    from undertow.run import Run

TABLES = ("json", "csv", "parquet")
REPORT = "html"
# Those of `show.pictures`, which is not loaded for a look at the help.
KINDS = ("png", "gif", "webp", "mp4")
SUBJECTS = ("heatmap", "flow", "timelines")
PALETTES = ("default", "high-contrast", "colour-blind", "monochrome")


def _size(context: click.Context, parameter: click.Parameter, given: str | None) -> tuple[int, int | None] | None:
    if given is None:
        return None
    width, cross, height = given.lower().partition("x")
    if not width.isdecimal() or (cross and not height.isdecimal()):
        raise click.BadParameter(f"{given!r} is no size: give a width, as 1600, or both sides, as 1600x900")
    return int(width), int(height) if cross else None


def _steps(
    context: click.Context, parameter: click.Parameter, given: str | None
) -> tuple[int | None, int | None] | None:
    if given is None:
        return None
    first, colon, last = given.partition(":")
    if not colon or not all(end.isdecimal() or not end for end in (first, last)):
        raise click.BadParameter(f"{given!r} are no steps: give 100:200, 100: or :200")
    return int(first) if first else None, int(last) if last else None


@click.command(
    help="Write the numbers of a run as one long table (a row per step and layer, a column per quantity), or draw it: "
    "a heatmap of all layers over all steps, the flow of gradient through the network, or a line per layer; as a "
    "still, or as an animation in which a colour means the same throughout; or as one interactive file for a browser."
    f"\n\n{RUN_HELP}",
    epilog="Example:  undertow export latest --to csv --layers 'blocks.0.*' --quantity gradient_norm -o norms.csv\n\n"
    "Example:  undertow export latest --to gif -o flow.gif",
)
@run_argument
@click.option("--to", "kind", type=click.Choice((*TABLES, *KINDS, REPORT)), required=True, help="The file format.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The file; stdout without it.")
@click.option("--layers", "globs", multiple=True, metavar="GLOB", help="Only layers whose path fits; may be repeated.")
@click.option("--quantity", "quantities", multiple=True, metavar="NAME", help="Only this quantity; may be repeated.")
@click.option("--what", type=click.Choice(SUBJECTS), help="The picture; a heatmap, or the flow if it moves.")
@click.option(
    "--steps", callback=_steps, metavar="FIRST:LAST", help="Only these steps, both included; one may be left out."
)
@click.option(
    "--size", callback=_size, metavar="WxH", help="In pixels, or the width alone: 1200, and as high as needed."
)
@click.option("--palette", type=click.Choice(PALETTES), help="The colours.")
@click.option("--theme", type=click.Choice(("light", "dark")), help="The paper.")
@click.option("--frames", type=int, metavar="N", help="How many frames an animation has at most: 120.")
@click.option("--fps", "frames_per_second", type=float, metavar="N", help="How many of them per second: 12.")
@click.option("--still", is_flag=True, default=None, help="WebP that does not move.")
@click.option("--font", type=click.Path(path_type=Path, dir_okay=False), help="A font file, for other scripts.")
def command(
    run: str, kind: str, output: Path | None, globs: tuple[str, ...], quantities: tuple[str, ...], **pictures: Any
) -> None:
    from undertow.run import open_run

    if output is None and kind not in ("json", "csv") and sys.stdout.isatty():
        raise click.UsageError(f"A {kind} file is not for the terminal: name it with -o FILE, or pipe it.")
    given = {name: value for name, value in pictures.items() if value is not None}
    if given and kind not in KINDS:  # options that would change nothing are a mistake
        option = {"frames_per_second": "fps"}.get(next(iter(given)), next(iter(given)))
        raise click.UsageError(f"--{option} is for pictures ({', '.join(KINDS)}), not for {kind}.")
    if kind == REPORT and (globs or quantities):
        raise click.UsageError("A report has all layers: --layers and --quantity go with numbers and pictures.")
    if kind in KINDS and len(quantities) > 1:
        raise click.UsageError("A picture shows one quantity: give --quantity once.")
    opened = open_run(run)
    layers = _layers(opened, globs) if globs and kind in TABLES else None

    def write(path: Path) -> None:
        if kind in TABLES:
            from undertow.store import exports

            to_file = {"json": exports.export_json, "csv": exports.export_csv, "parquet": exports.export_parquet}[kind]
            to_file(opened.reader, path, layers=layers, quantities=quantities or None)
        elif kind == REPORT:
            from undertow.show.html.report_file import write_report

            write_report(opened, path)
        else:
            from undertow.show.pictures.drawing import save_picture

            with bar("drawing") as tell:
                quantity = quantities[0] if quantities else None
                save_picture(opened, path, kind, quantity=quantity, layers=globs, progress=tell, **given)

    with nullcontext() if kind in KINDS else busy(f"exporting {len(opened.steps):,} steps"):
        if output is None:
            _to_stdout(write, kind)
        else:
            _to_file(write, output)
            say(f"wrote {output}", err=True)


def _layers(run: Run, globs: tuple[str, ...]) -> list[int]:
    from undertow.views.tiles import fits

    for glob in globs:
        if not any(fits(path, (glob,)) for path in run.layers.paths):
            some = ", ".join(run.layers.paths[:4]) or "none"
            raise UnknownNameError(f"no layer of this run fits {glob!r}", way_out=f"Its layers are: {some}, …")
    return [layer.id for layer in run.layers if fits(layer.path, globs)]


def _to_file(write: Callable[[Path], None], output: Path) -> None:
    """Through a neighbour that takes the name when it is whole: an old file is never half overwritten."""
    partial = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        write(partial)
        partial.replace(output)
    except OSError as problem:
        raise UnwritableRunError(
            f"{output} cannot be written: {problem.strerror or problem}", way_out="Choose another file with -o"
        ) from None
    finally:
        partial.unlink(missing_ok=True)


def _to_stdout(write: Callable[[Path], None], kind: str) -> None:
    with tempfile.TemporaryDirectory(prefix="undertow-") as folder:
        path = Path(folder) / f"export.{kind}"
        write(path)
        with path.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
