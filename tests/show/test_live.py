"""The live picture, drawn from a run folder that is being written."""

import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from undertow.run import open_run
from undertow.schema.facts import RunFacts
from undertow.schema.frames import Block, Frame
from undertow.schema.graph import LayerGraph
from undertow.schema.layers import Layer, LayerKind, LayerTable
from undertow.schema.quantities import GRADIENT
from undertow.show.terminal.live import Lines, Picture, follow
from undertow.store.writer import RunWriter

PATHS = ["embedding.weight", "encoder.weight", "head.weight"]


@pytest.fixture
def writer(tmp_path: Path) -> RunWriter:
    writer = RunWriter(tmp_path / "run", RunFacts(name="live"))
    layers = [Layer(path, kind=LayerKind.WEIGHT, order=place) for place, path in enumerate(PATHS)]
    writer.set_layers(LayerTable.of(layers), LayerGraph())
    return writer


def write(writer: RunWriter, step: int, norms: list[float], loss: float) -> None:
    values = np.full((len(GRADIENT.quantities), len(norms)), np.nan, np.float32)
    values[GRADIENT.names.index("gradient_norm")] = norms
    values[GRADIENT.names.index("gradient_nonfinite_count")] = ~np.isfinite(norms)
    values[GRADIENT.names.index("gradient_state")] = 0
    values[GRADIENT.names.index("gradient_state"), 0] = 1  # the embedding is cut off
    values[GRADIENT.names.index("gradient_nonfinite_count"), 0] = np.nan
    block = Block("gradient", np.arange(len(norms), dtype=np.int32), values)
    writer.append(Frame(step, step, float(step), {"loss": loss}, {"gradient": block}))


def drawn(picture: Picture, width: int = 80) -> list[str]:
    console = Console(width=width, height=24, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(picture)
    return [line.rstrip() for line in capture.get().splitlines()]


def test_it_waits_for_the_first_step_and_then_grows(writer: RunWriter, tmp_path: Path) -> None:
    picture = Picture(open_run(tmp_path / "run"), "a title", 100)
    assert drawn(picture) == ["a title", "waiting for the first step …"]
    write(writer, 0, [np.nan, 1e-4, 1.0], 2.5)
    write(writer, 1, [np.nan, 1e-4, 1.0], 1.5)
    lines = drawn(picture)
    assert lines[1].split() == ["embedding.weight", "––"]
    assert lines[2].split() == ["encoder.weight", "░░"]
    assert lines[3].split() == ["head.weight", "██"]
    assert "– no gradient" in lines[4]
    assert lines[5].split() == ["loss", "█▁"]
    assert lines[6].strip() == "step 2 of 100 · loss 1.5"
    write(writer, 2, [np.nan, np.nan, np.inf], np.nan)
    picture.verdict = "NUM001 found at step 2"
    lines = drawn(picture)
    assert lines[2].split() == ["encoder.weight", "░░╳"]
    assert lines[5].split() == ["loss", "█▁×"]
    assert lines[6].strip() == "NUM001 found at step 2 · step 3 of 100 · loss nan"


def test_few_rows_say_how_much_is_hidden(writer: RunWriter, tmp_path: Path) -> None:
    write(writer, 0, [np.nan, 1e-4, 1.0], 2.5)
    lines = drawn(Picture(open_run(tmp_path / "run"), "a title", 100, rows=2))
    assert [line.split()[0] for line in lines[1:3]] == ["embedding.weight", "head.weight"]
    assert "2 of 3 tensors shown" in lines[-1]


def test_no_line_is_wider_than_the_terminal(writer: RunWriter, tmp_path: Path) -> None:
    for step in range(300):
        write(writer, step, [np.nan, 1e-4, 1.0], 2.5)
    assert max(map(len, drawn(Picture(open_run(tmp_path / "run"), "a title" * 30, 300)))) <= 80


@pytest.mark.parametrize("width", [30, 40, 80])
def test_nothing_is_cut_off_in_a_narrow_terminal(writer: RunWriter, tmp_path: Path, width: int) -> None:
    for step in range(90):
        write(writer, step, [np.nan, 1e-4, np.inf if step > 80 else 1.0], 2.5)
    picture = Picture(open_run(tmp_path / "run"), "a title", 90, rows=2)
    picture.verdict = "NUM001 found at step 81"
    lines = drawn(picture, width)
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines[3:])
    below = " ".join(" ".join(lines[3:]).split())
    for words in ("– no gradient", "╳ NaN or infinite", "step 90 of 90 · loss 2.5", "2 of 3 tensors shown"):
        assert words in below
    state = next(line for line in lines if picture.verdict in line)
    assert state.strip().startswith(picture.verdict)


def test_lines_follow_a_run_without_escape_codes(writer: RunWriter, tmp_path: Path) -> None:
    console = Console(width=80, color_system=None, force_terminal=False, record=True)
    picture = Picture(open_run(tmp_path / "run"), "a title", 20)
    with follow(picture, console, live=False) as lines:
        assert isinstance(lines, Lines)
        for step in range(20):
            write(writer, step, [np.nan, 1e-4, 1.0], 2.5)
        while "step 20 of 20" not in console.export_text(clear=False):
            assert lines.is_following
            time.sleep(0.02)
    text = console.export_text()
    assert text.startswith("a title\n")
    assert "\x1b[" not in text
