"""The options of `undertow export` that concern pictures, and what was typed in them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

KINDS = ("png", "gif", "webp", "mp4")
# Those of `show.pictures.drawing`, which is not loaded for a look at the help.
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


_OPTIONS = (
    click.option("--what", type=click.Choice(SUBJECTS), help="The picture; a heatmap, or the flow if it moves."),
    click.option(
        "--steps", callback=_steps, metavar="FIRST:LAST", help="Only these steps, both included; one may be left out."
    ),
    click.option(
        "--size", callback=_size, metavar="WxH", help="In pixels, or the width alone: 1200, and as high as needed."
    ),
    click.option("--palette", type=click.Choice(PALETTES), help="The colours."),
    click.option("--theme", type=click.Choice(("light", "dark")), help="The paper."),
    click.option("--frames", type=int, metavar="N", help="How many frames an animation has at most: 120."),
    click.option("--fps", "frames_per_second", type=float, metavar="N", help="How many of them per second: 12."),
    click.option("--still", is_flag=True, default=None, help="WebP that does not move."),
    click.option("--font", type=click.Path(path_type=Path, dir_okay=False), help="A font file, for other scripts."),
)


def picture_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def refuse_for_others(kind: str, pictures: dict[str, Any]) -> None:
    """Options that would change nothing are a mistake."""
    given = [name for name, value in pictures.items() if value is not None]
    if given:
        option = {"frames_per_second": "fps"}.get(given[0], given[0])
        raise click.UsageError(f"--{option} is for pictures ({', '.join(KINDS)}), not for {kind}.")
