"""Pictures as files: they open elsewhere, colours stay, and nothing half-made is left behind."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from undertow.cli import group
from undertow.errors import SettingError, UnreadableRunError
from undertow.run import Run
from undertow.show.pictures import drawing, files
from undertow.show.pictures.drawing import save_picture
from undertow.store.exports import MissingPackageError
from undertow.views.palette import Cell, palette_of


def frames_of(path: Path) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    if path.suffix == ".mp4":
        with av.open(str(path)) as container:
            return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    with Image.open(path) as image:
        found = []
        for number in range(getattr(image, "n_frames", 1)):
            image.seek(number)
            found.append(np.asarray(image.convert("RGB")))
        return found


@pytest.mark.parametrize("kind", ["gif", "webp", "mp4"])
@pytest.mark.parametrize("what", ["flow", "heatmap"])
def test_animations_open_elsewhere_and_keep_their_colours(broken: Run, tmp_path: Path, kind: str, what: str) -> None:
    path = tmp_path / f"moving.{kind}"
    told: list[tuple[int, int]] = []
    save_picture(
        broken,
        path,
        kind,
        what=what,
        frames=10,
        size=(640, 480),
        progress=lambda done, total: told.append((done, total)),
    )
    frames = frames_of(path)
    assert len(frames) == 10 + (18 if kind == "mp4" else 0)  # a video rests on its last frame for a while
    assert told == [(done, 10) for done in range(11)]
    assert frames[0].shape == (480, 640, 3)
    assert (frames[0] != frames[9]).any()
    # The colour scale in the legend is the same in every frame, and so is the mark of what is not finite.
    near = 24 if kind == "mp4" else 4
    bar = np.abs(frames[0][400:480, 20:200].astype(int) - frames[9][400:480, 20:200]).max()
    assert bar <= near
    magenta = np.array(palette_of().marks[Cell.NONFINITE].colour)
    counts = [int((np.abs(frame.astype(int) - magenta).max(-1) <= near).sum()) for frame in frames]
    assert counts[9] > counts[0] > 20  # in the legend from the start, in the picture from step 12 on


def test_a_gif_repeats_and_rests_at_the_end(broken: Run, tmp_path: Path) -> None:
    save_picture(broken, tmp_path / "a.gif", "gif", frames=5, frames_per_second=10)
    with Image.open(tmp_path / "a.gif") as image:
        assert image.info["loop"] == 0
        assert image.info["duration"] == 100
        image.seek(4)
        assert image.info["duration"] == 1500


def test_colours_of_a_gif_are_those_of_the_palette(marked: Run, tmp_path: Path) -> None:
    for scheme in ("default", "monochrome"):
        save_picture(marked, tmp_path / "a.gif", "gif", what="heatmap", frames=2, palette=scheme)
        save_picture(marked, tmp_path / "a.png", "png", palette=scheme)
        moving, still = frames_of(tmp_path / "a.gif")[-1], frames_of(tmp_path / "a.png")[0]
        below = slice(70, None)  # the step stands in the title of the one that moves
        assert np.abs(moving[below].astype(int) - still[below]).max(-1).mean() < 1.5


@pytest.mark.parametrize("kind", ["png", "webp"])
def test_stills(broken: Run, tmp_path: Path, kind: str) -> None:
    save_picture(broken, tmp_path / "a", kind, still=kind == "webp", size=(700, None))
    (frame,) = frames_of(tmp_path / "a")
    assert frame.shape[1] == 700


def test_a_gif_that_would_take_all_memory_is_refused(
    broken: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_GIF_PIXELS", 9 * 700 * 400)
    with pytest.raises(SettingError, match=r"--frames 9, .* mp4"):
        save_picture(broken, tmp_path / "a.gif", "gif", frames=20, size=(700, 400))


def test_what_cannot_be_drawn_is_refused(broken: Run, tmp_path: Path) -> None:
    for options in (
        {"kind": "gif", "still": True},
        {"kind": "gif", "frames": 1},
        {"kind": "mp4", "frames_per_second": 1000.0},
        {"size": (600, None)},
        {"size": (640, 100_000)},
        {"palette": "rainbow"},
        {"what": "portrait"},
    ):
        with pytest.raises(SettingError):
            save_picture(broken, tmp_path / "a", **options)
    assert not (tmp_path / "a").exists()


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(group, [str(argument) for argument in arguments])


def test_the_command_writes_every_kind(broken: Run, tmp_path: Path) -> None:
    options = ("--what", "timelines", "--layers", "first*", "--steps", "2:9", "--size", "640x320", "--palette")
    for kind in ("png", "webp"):
        result = invoke("export", broken.folder, "--to", kind, *options, "colour-blind", "-o", tmp_path / f"a.{kind}")
        assert result.exit_code == 0, result.output
        assert result.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.webp"]
    assert CliRunner().invoke(group, ["export", str(broken.folder), "--to", "png"]).stdout_bytes[1:4] == b"PNG"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--to", "csv", "--palette", "monochrome"), "--palette is for pictures"),
        (("--to", "json", "--fps", "3"), "--fps is for pictures"),
        (("--to", "png", "--size", "wide"), "is no size"),
        (("--to", "png", "--steps", "7"), "are no steps"),
        (("--to", "png", "--quantity", "weight_norm", "--quantity", "gradient_norm"), "one quantity"),
    ],
)
def test_the_command_refuses(broken: Run, arguments: tuple[str, ...], words: str) -> None:
    result = invoke("export", broken.folder, *arguments, "-o", "never")
    assert result.exit_code == 2
    assert words in result.stderr
    assert not Path("never").exists()


def test_an_html_file_is_the_report(broken: Run, tmp_path: Path) -> None:
    assert invoke("export", broken.folder, "--to", "html", "-o", tmp_path / "a.html").exit_code == 0
    assert invoke("report", broken.folder, "--html", tmp_path / "b.html").exit_code == 0
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert invoke("export", broken.folder, "--to", "html", "--layers", "first*", "-o", "never").exit_code == 2
    assert invoke("export", broken.folder, "--to", "html", "--theme", "dark", "-o", "never").exit_code == 2


def test_a_run_without_steps_says_so(tmp_path: Path) -> None:
    from tests.cli.conftest import write
    from tests.detect.building import Training

    run = Run(write(tmp_path / "empty", Training()))
    for what in drawing.SUBJECTS:
        with pytest.raises(UnreadableRunError, match="no recorded steps"):
            save_picture(run, tmp_path / "a.png", what=what)


def test_an_interruption_leaves_the_old_file_and_nothing_else(
    broken: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(picture: Any, path: Path, *_: Any) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(drawing, "save_animation", interrupted)
    old = tmp_path / "flow.gif"
    old.write_bytes(b"old")
    assert invoke("export", broken.folder, "--to", "gif", "-o", old).exit_code != 0
    assert old.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["flow.gif"]


def without(package: str) -> Callable[..., Any]:
    find = importlib.util.find_spec
    return lambda name, *rest: None if name == package else find(name, *rest)


def test_missing_packages_name_the_way_out(broken: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", without("av"))
    with pytest.raises(MissingPackageError, match=r"undertow\[video\].*gif"):
        save_picture(broken, tmp_path / "a.mp4", "mp4", frames=2)
    monkeypatch.setattr(importlib.util, "find_spec", without("PIL"))
    for name in [name for name in sys.modules if name.startswith("undertow.show.pictures")]:
        monkeypatch.delitem(sys.modules, name)
    result = invoke("export", broken.folder, "--to", "png", "-o", tmp_path / "a.png")
    assert isinstance(result.exception, MissingPackageError)
    assert "undertow[pictures]" in str(result.exception)
    assert invoke("export", broken.folder, "--to", "csv", "-o", tmp_path / "a.csv").exit_code == 0
