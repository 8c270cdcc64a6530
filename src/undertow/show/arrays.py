"""Components show themselves: what they hold becomes a small run, and that is shown as any run is."""

import shutil
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from undertow.errors import SettingError, UnreadableRunError
from undertow.run import Run, open_run
from undertow.schema import STREAMS, Block, Frame, Layer, LayerGraph, LayerTable, RunFacts, RunStatus
from undertow.schema.quantities import GradientState
from undertow.schema.seeds.animation import GradientFrame, GradientPresence
from undertow.schema.seeds.flow_records import GradientFlowVisualization
from undertow.show.html.report_file import write_report
from undertow.show.notebook.markup import text as escaped
from undertow.show.pictures.drawing import save_picture
from undertow.show.terminal.ability import ability_of, can_be_drawn_on
from undertow.show.terminal.camera import Camera
from undertow.show.terminal.picture import Picture
from undertow.show.terminal.plain_lines import still
from undertow.show.terminal.player import Player
from undertow.show.terminal.screen import Screen
from undertow.store.writer import RunWriter
from undertow.views.palette import palette_of

_ROWS = {name: row for row, name in enumerate(STREAMS["gradient"].names)}
_LARGEST = 1e37  # of what is drawn: sums of a few stay in the range of float32
_NAME = "gradients"
_Numbers = Mapping[str, Mapping[str, float]]  # layer → quantity → value


def play_frames(frames: Sequence[GradientFrame], names: Sequence[str], palette: str, quantity: str, once: bool) -> None:
    """As `undertow play` does: moving where stdout is a terminal, else, or `once`, as one picture."""
    with _run_of_frames(frames, names) as run:
        chosen, ability = palette_of(palette), ability_of(sys.stdout)
        camera = Camera(run, quantity)
        if not once and can_be_drawn_on(sys.stdout):
            Player(camera, ability, chosen.scheme).play(Screen.here())
            return
        columns = shutil.get_terminal_size((80, 24)).columns
        print("\n".join(still(Picture(camera, ability, chosen), max(20, columns))))


def export_frames(
    frames: Sequence[GradientFrame], names: Sequence[str], path: Path, kind: str, options: Mapping[str, Any]
) -> None:
    """As `undertow export` does: a still, an animation, or one interactive file for a browser."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _run_of_frames(frames, names) as run:
        if kind == "html":
            write_report(run, path)
        else:
            save_picture(run, path, kind, **_checked({"what": "heatmap", **options}))


def draw_flow(flow: GradientFlowVisualization, path: Path, options: Mapping[str, Any]) -> None:
    """The flow as `undertow export --what flow` draws it, in the colours of its configuration; by the file's ending."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("svg", "png", "webp", "gif", "mp4", "html"):
        raise SettingError(
            f"{path.name} is no kind of picture", way_out="There are: .svg, .png, .webp, .gif, .mp4, .html"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    given = _checked({"what": "flow", "flow": flow, "palette": flow.visualization_config.color_scheme, **options})
    with _run_of_flow(flow) as run:
        if kind != "html":
            save_picture(run, path, kind, **given)
            return
        with tempfile.TemporaryDirectory(prefix="undertow-") as folder:
            picture = Path(folder) / "flow.svg"
            save_picture(run, picture, "svg", **given)
            drawing = picture.read_text(encoding="utf-8")
    page = (
        '<!doctype html><meta charset="utf-8"><title>Gradient flow</title><body style="margin:2em">'
        f'{drawing}<pre style="overflow-x:auto">{escaped(flow)}</pre></body>\n'
    )
    path.write_text(page, encoding="utf-8")


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    legal = [
        name for name in signature(save_picture).parameters if name not in ("run", "path", "kind", "flow", "progress")
    ]
    wrong = next((name for name in options if name not in (*legal, "flow")), None)
    if wrong is not None:
        raise SettingError(f"a picture has no option {wrong!r}", way_out=f"There are: {', '.join(legal)}")
    return options


@contextmanager
def _run_of_frames(frames: Sequence[GradientFrame], names: Sequence[str]) -> Generator[Run]:
    def numbers(frame: GradientFrame) -> _Numbers:
        return {
            layer.name: {"gradient_state": GradientState.NONE}
            if layer.presence is GradientPresence.MISSING
            else {
                "gradient_norm": layer.grad_norm,
                "gradient_mean_abs": layer.mean_abs_grad,
                "gradient_max_abs": layer.max_abs_grad,
                "gradient_nonfinite_count": layer.nonfinite_count,
            }
            for layer in frame.layers
            if layer.presence is not GradientPresence.EMPTY
        }

    with _written(names, [(frame.step, numbers(frame)) for frame in frames]) as run:
        yield run


@contextmanager
def _run_of_flow(flow: GradientFlowVisualization) -> Generator[Run]:
    steps: dict[int, dict[str, Mapping[str, float]]] = {}
    for name, layer in flow.layer_flows.items():
        for one in layer.gradient_directions:
            lost = float(not np.isfinite(one.magnitude))
            steps.setdefault(one.step, {})[name] = {"gradient_norm": one.magnitude, "gradient_nonfinite_count": lost}
    with _written(list(flow.layer_flows), sorted(steps.items())) as run:
        yield run


@contextmanager
def _written(names: Sequence[str], steps: Sequence[tuple[int, _Numbers]]) -> Generator[Run]:
    """A run in a folder that is gone when it has been shown."""
    if not steps:
        raise UnreadableRunError("nothing was recorded, so there is nothing to show")
    place = {name: number for number, name in enumerate(names)}
    layers = tuple(Layer(name, number, order=number, group=name.rpartition(".")[0]) for name, number in place.items())
    with tempfile.TemporaryDirectory(prefix="undertow-") as folder:
        writer = RunWriter(Path(folder) / _NAME, RunFacts(name=_NAME, status=RunStatus.FINISHED))
        writer.set_layers(LayerTable(layers), LayerGraph())
        writer.append_many([_frame(number, step, place, found) for number, (step, found) in enumerate(steps)])
        writer.write_facts()
        writer.close()
        yield open_run(Path(folder) / _NAME)


def _frame(sequence: int, step: int, place: Mapping[str, int], found: _Numbers) -> Frame:
    values = np.full((len(_ROWS), len(found)), np.nan, np.float32)
    for column, numbers in enumerate(found.values()):
        values[_ROWS["gradient_state"], column] = GradientState.PRESENT
        for name, value in numbers.items():
            values[_ROWS[name], column] = np.clip(value, -_LARGEST, _LARGEST)
    ids = np.array([place[name] for name in found], np.int32)
    return Frame(sequence, step, float(step), {}, {"gradient": Block("gradient", ids, values)} if found else {})
