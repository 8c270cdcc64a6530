"""From a run to a picture file: what people ask for, in one call."""

from collections.abc import Callable, Sequence
from pathlib import Path

from undertow.errors import SettingError
from undertow.run import Run
from undertow.schema.seeds.flow_records import GradientFlowVisualization
from undertow.show.pictures.canvas import Style
from undertow.show.pictures.choice import Choice
from undertow.show.pictures.files import Picture, save_animation, save_still
from undertow.show.pictures.flow import FlowPicture
from undertow.show.pictures.heatmap import HeatmapPicture
from undertow.show.pictures.timelines import TimelinesPicture
from undertow.show.pictures.typeface import Typeface
from undertow.show.pictures.vector import VectorCanvas
from undertow.views.palette import INKS, Theme, palette_of

KINDS = ("png", "gif", "webp", "mp4")
SUBJECTS = ("heatmap", "flow", "timelines")
SMALLEST, LARGEST = (640, 320), 8000  # pixels on a side: below, names and numbers would not fit beside each other
MOST_FRAMES = 3000


def save_picture(
    run: Run,
    path: Path,
    kind: str = "png",
    *,
    what: str | None = None,
    quantity: str | None = None,
    layers: Sequence[str] = (),
    steps: tuple[int | None, int | None] = (None, None),
    size: tuple[int, int | None] = (1200, None),
    palette: str = "default",
    theme: str = "light",
    still: bool = False,
    frames: int = 120,
    frames_per_second: float = 12.0,
    font: Path | None = None,
    flow: GradientFlowVisualization | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Draw `what` of the run ("heatmap", "flow" or "timelines") into a file.

    PNG and SVG are stills, GIF and MP4 move; WebP moves unless `still`. Without `what`, stills are heatmaps and what
    moves is the flow, computed here unless `flow` is given. The colour scale is that of the whole run in every frame.
    """
    moves = kind in ("gif", "mp4") or (kind == "webp" and not still)
    if still and kind in ("gif", "mp4"):
        raise SettingError(f"{kind} moves: it cannot be a still", way_out="Use png, or webp with --still")
    style = Style(
        palette_of(palette), INKS[Theme(theme)], Typeface(font), *_size(size), VectorCanvas if kind == "svg" else None
    )
    choice = Choice(quantity, tuple(layers), *steps)
    count = _frames(frames, frames_per_second) if moves else 1
    picture = _picture(what or ("flow" if moves else "heatmap"), run, choice, style, count, flow)
    if moves:
        save_animation(picture, path, kind, style, count, frames_per_second, progress)
    else:
        save_still(picture, path, kind)


def _picture(
    what: str, run: Run, choice: Choice, style: Style, frames: int, flow: GradientFlowVisualization | None
) -> Picture:
    if what not in SUBJECTS:
        raise SettingError(f"there is no picture {what!r}", way_out=f"There are: {', '.join(SUBJECTS)}")
    if what == "flow":
        return FlowPicture(run, choice, style, frames, flow)
    return (TimelinesPicture if what == "timelines" else HeatmapPicture)(run, choice, style)


def _size(size: tuple[int, int | None]) -> tuple[int, int | None]:
    for name, side, smallest in zip(("wide", "high"), size, SMALLEST):
        if side is not None and not smallest <= side <= LARGEST:
            raise SettingError(
                f"a picture cannot be {side} pixels {name}", way_out=f"From {smallest} to {LARGEST} it can"
            )
    return size


def _frames(frames: int, per_second: float) -> int:
    if not 2 <= frames <= MOST_FRAMES:
        raise SettingError(f"an animation cannot have {frames} frames", way_out=f"From 2 to {MOST_FRAMES} it can")
    if not 0.2 <= per_second <= 60:
        raise SettingError(f"{per_second:g} frames per second cannot be shown", way_out="From 0.2 to 60 can")
    return frames
