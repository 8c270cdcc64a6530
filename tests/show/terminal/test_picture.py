"""Pictures of runs: golden ones without colours, and promises that hold at any size."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.cells import cell_len
from tests.show.terminal.runs import HOSTILE, PLAIN, Story, story

from undertow.run import open_run
from undertow.schema import Severity
from undertow.show.terminal.ability import Ability, Depth
from undertow.show.terminal.camera import Camera
from undertow.show.terminal.picture import Moment, Picture
from undertow.show.terminal.plain_lines import Lines, still
from undertow.show.terminal.playback import Playback

KEYS = ("space play", "? keys", "q quit")
NO_COLOUR, ASCII = Ability(Depth.NONE), Ability(Depth.NONE, unicode=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return story(tmp_path_factory.mktemp("runs") / "story")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return story(tmp_path_factory.mktemp("runs") / "hostile", HOSTILE)


def camera(folder: Path) -> Camera:
    return Camera(open_run(folder))


GOLDEN = """\
✖ critical story               step 119 · loss NaN
embedding.weight ––––––––––––––––––––––––––––––
  encoder.weight ██████████████████████████████
    encoder.bias 000000000000000000000000000000
   middle.weight ▓▓▓▓▒▒▒▒▓▓▓▓▒▒▒╳╳╳╳╳╳╳╳╳╳╳╳╳╳╳
   frozen.weight ffffffffffffffffffffffffffffff
     head.weight ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░
            step 0              ✖           119
            loss █▆▅▅▄▃▃▃▂▂▂▁▁▁▁×××××××××××××××
   gradient_norm 1e-6 ░░▒▓██ 1   ╳ not finite
✖ NUM001 step 60  The gradient of middle.weight t…"""

GOLDEN_ASCII = """\
+ healthy story     step 29 - loss 0.816
   emb.weight ------
   enc.weight %%%%%%
 encoder.bias 000000
middle.weight ****++
frozen.weight ffffff
  head.weight ::::::
         step 0    ^               119
         loss @*+=--
gradient_norm 1e-6 .=*#@ 1   0 zero"""


def test_a_golden_picture_without_colours(run: Path) -> None:
    assert "\n".join(still(Picture(camera(run), NO_COLOUR), 50, 12)) == GOLDEN


def test_a_golden_picture_in_ascii_halfway(run: Path) -> None:
    lines = Picture(camera(run), ASCII).lines(Moment(29, 0, 119), 40, 12)
    assert "\n".join(line.rstrip() for line in lines) == GOLDEN_ASCII


@pytest.mark.parametrize("columns", [20, 40, 80, 200, 300])
@pytest.mark.parametrize("rows", [6, 10, 24, 60])
@pytest.mark.parametrize("depth", [Depth.TRUE, Depth.NONE])
def test_it_fits_whatever_the_size(run: Path, hostile: Path, columns: int, rows: int, depth: Depth) -> None:
    for folder in (run, hostile):
        for step in (0, 61, 119):
            picture = Picture(camera(folder), Ability(depth))
            lines = picture.lines(Moment(step, 0, 119, keys=KEYS, selected=PLAIN[3]), columns, rows)
            assert len(lines) == rows
            assert "q quit" in lines[-1]
            for line in lines:
                text = re.sub(r"\x1b\[[0-9;]*[mG]", "", line)
                assert text.isprintable()
                assert cell_len(text) <= columns


def test_keys_are_named_as_far_as_there_is_room(run: Path) -> None:
    keys = ("space play", "← → step", "+ - zoom", "? keys", "q quit")
    shown = [
        Picture(camera(run), NO_COLOUR).lines(Moment(5, 0, 119, keys=keys), columns, 24)[-1].split("  ")
        for columns in (100, 44, 34, 20)
    ]
    assert [[word.strip() for word in words if word.strip()] for words in shown] == [
        list(keys), [*keys[:2], *keys[-2:]], [keys[0], *keys[-2:]], list(keys[-2:]),
    ]  # fmt: skip


def test_nothing_of_the_future_is_shown(run: Path) -> None:
    lines = Picture(camera(run), NO_COLOUR).lines(Moment(59, 0, 119), 80, 30)
    assert not any("╳" in line for line in lines[1:-2] if "not finite" not in line)
    assert not any("NUM001" in line for line in lines)
    assert not any("×" in line for line in lines)
    assert any("NUM001" in line for line in Picture(camera(run), NO_COLOUR).lines(Moment(60, 0, 119), 80, 30))


def test_the_worst_layers_come_with_the_reason(run: Path) -> None:
    lines = Picture(camera(run), NO_COLOUR).lines(Moment(119, 0, 119), 100, 30)
    worst = next(place for place, line in enumerate(lines) if line.lstrip().startswith("worst"))
    assert lines[worst].strip() == "worst ✖ middle.weight  NaN or infinite, NUM001 non-finite-gradient"
    assert lines[worst + 1].strip() == "· embedding.weight  no gradient"
    assert lines[worst + 2].strip() == "· encoder.bias  exactly zero"


def test_two_layers_share_a_character_when_there_are_many(tmp_path: Path) -> None:
    names = [f"net.{number}.{name}" for number in range(40) for name in ("weight", "bias")]
    folder = Story(tmp_path / "run", names).write(10).end()
    lines = Picture(camera(folder), Ability(Depth.TRUE)).lines(Moment(9, 0, 9), 60, 20)
    assert any("▀" in line for line in lines[1:12])
    few = Story(tmp_path / "few", names[:6]).write(200).end()
    lines = Picture(camera(few), Ability(Depth.TRUE)).lines(Moment(199, 0, 199), 60, 20)
    assert any("▌" in line for line in lines[1:8])


def test_a_filter_that_nothing_matches_says_so(run: Path) -> None:
    lines = Picture(Camera(open_run(run), pattern="no.such.layer"), NO_COLOUR).lines(Moment(9, 0, 119), 60, 20)
    assert lines[1] == "no layer matches 'no.such.layer'"


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_runs_of_few_steps(tmp_path: Path, steps: int) -> None:
    folder = Story(tmp_path / "run").write(steps).end()
    lines = list(still(Picture(camera(folder), NO_COLOUR), 60))
    assert ("no step was recorded" in lines[1]) is (steps == 0)
    assert steps == 0 or "embedding.weight ––" in lines[1].strip()


def test_rare_samples_are_no_gaps_and_gaps_are_marked(tmp_path: Path) -> None:
    writer = Story(tmp_path / "run").write(10, every=5)
    writer.step += 200
    folder = writer.write(10, every=5).end()
    row = next(line for line in still(Picture(camera(folder), NO_COLOUR), 80) if "encoder.weight" in line).split()[-1]
    assert set(row) == {"█", "·"}
    assert row.strip("█").strip("·") == ""


class TestPlayback:
    @pytest.fixture
    def playback(self, run: Path) -> Playback:
        return Playback(camera(run))

    def pressed(self, playback: Playback, *keys: str) -> Moment:
        for key in keys:
            playback.press(key)
        return playback.moment("finished")

    def test_time_and_speed(self, playback: Playback) -> None:
        playback.advance(5.0)
        assert playback.moment("finished").step == 59
        self.pressed(playback, ">")
        playback.advance(2.5)
        assert playback.moment("finished").step == 119
        assert not playback.playing
        self.pressed(playback, "space")  # at the end: once more
        assert (playback.moment("finished").step, playback.playing) == (0, True)

    def test_moving(self, playback: Playback) -> None:
        assert self.pressed(playback, "end").step == 119
        assert self.pressed(playback, ",").step == 118
        assert self.pressed(playback, "page up").step == 106
        assert self.pressed(playback, "N").step == 60
        assert self.pressed(playback, "N").step == 60  # there is none before
        assert self.pressed(playback, "left", "left").step == 58
        assert self.pressed(playback, "home", "left").step == 0

    def test_zoom_keeps_the_step_in_sight(self, playback: Playback) -> None:
        moment = self.pressed(playback, "n", "+", "+")
        assert moment.last - moment.first + 1 == 30
        assert moment.first <= 60 <= moment.last
        for _ in range(10):
            moment = self.pressed(playback, "+")
        assert moment.last - moment.first + 1 == 8
        moment = self.pressed(playback, "0")
        assert (moment.first, moment.last) == (0, 119)

    def test_layers_quantities_and_colours(self, playback: Playback) -> None:
        assert self.pressed(playback, "down", "down").selected == "encoder.weight"
        assert self.pressed(playback, "up", "up").selected == "head.weight"
        assert self.pressed(playback, "escape").selected is None
        before = playback.camera.quantity
        self.pressed(playback, "m")
        assert playback.camera.quantity != before
        self.pressed(playback, "M")
        assert playback.camera.quantity == before
        scheme = playback.palette
        self.pressed(playback, "c")
        assert playback.palette != scheme

    def test_the_filter_is_typed_and_taken_back(self, playback: Playback) -> None:
        self.pressed(playback, "/", *"enc* q", "enter")
        assert [layer.path for layer in playback.camera.layers()] == ["encoder.weight", "encoder.bias"]
        assert not playback.over
        moment = self.pressed(playback, "/", "x")
        assert moment.keys[0] == "show layers: enc* qx_"
        self.pressed(playback, "backspace", "backspace", "escape")
        assert playback.camera.pattern == "enc* q"


def test_lines_say_what_is_new_once(tmp_path: Path) -> None:
    writer = Story(tmp_path / "run")
    said: list[str] = []
    lines = Lines(camera(tmp_path / "run"), said.append, ASCII, total=20)
    lines.look()
    assert said == []
    writer.write(4)
    lines.look()
    writer.find(severity=Severity.SEVERE).write(16)
    lines.look()
    lines.look()
    writer.end()
    lines.until_it_ends()
    assert said == [
        "4 of 20 steps - loss 1.74",
        "# severe NUM001 at step 4: The gradient of middle.weight turned non-finite at step 4.",
        "20 of 20 steps - loss 1.03",
    ]


def test_a_run_that_nobody_has_judged_is_not_called_healthy(tmp_path: Path) -> None:
    folder = Story(tmp_path / "run").write(20).end()
    assert next(iter(still(Picture(camera(folder), NO_COLOUR), 60))).startswith("✔ healthy")
    (folder / "events.jsonl").unlink()
    assert next(iter(still(Picture(camera(folder), NO_COLOUR), 60))).startswith("not judged story")
