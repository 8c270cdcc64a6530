"""What the docs tell readers to type works as it stands."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from tests.docs.pages import PAGES, ROOT, blocks, languages, name_of, with_blocks
from tests.docs.shell import call

README = ROOT / "README.md"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_of_a_known_kind(page: Path) -> None:
    assert languages(page) <= {"python", "bash", "diff", "console", "text", "toml", ""}
    assert "" not in languages(page) or page.name == "FORMAT.md"


@pytest.mark.parametrize("page", with_blocks("python"), ids=name_of)
def test_python_blocks_run_one_after_another(page: Path, reader: Path) -> None:
    program = "\n\n".join(blocks(page, "python"))
    done = call(reader, sys.executable, "-c", program)
    assert done.returncode == 0, f"{program}\n{done.stdout}\n{done.stderr}"


SHELL = [(page, number) for page in with_blocks("bash") for number in range(len(blocks(page, "bash")))]


@pytest.mark.parametrize(("page", "number"), SHELL, ids=[f"{name_of(page)}-{number}" for page, number in SHELL])
def test_shell_blocks_run(page: Path, number: int, reader: Path) -> None:
    done = call(reader, "bash", "-euxo", "pipefail", "-c", blocks(page, "bash")[number])
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_the_quickstart_is_the_example_and_short() -> None:
    script = blocks(README, "python")[0]
    assert (ROOT / "examples/plain_loop.py").read_text(encoding="utf-8").endswith(f"\n\n{script}")
    assert len(script.splitlines()) < 20


def test_the_output_shown_is_the_output_given(reader: Path) -> None:
    """Word for word, but for the name of the run, the losses, what watching cost, and the step of detection.

    That last one depends on the governor, which samples less on a slow machine.
    """
    shown = next(block for block in blocks(README, "text") if block.startswith("step 99")).splitlines()
    printed, closing, title, report = shown[:2], shown[2], shown[4], shown[5:]
    ran = call(reader, "undertow", "run", "examples/plain_loop.py")
    lines = call(reader, "undertow", "report", "latest").stdout.splitlines()
    assert [line.split()[:-1] for line in ran.stdout.splitlines()] == [line.split()[:-1] for line in printed]
    assert _without_figures(ran.stderr) == _without_figures(closing)
    assert _without_figures(lines[0]) == _without_figures(title)
    assert len(lines) == len(report) + 1
    for given, expected in zip(lines[1:], report):
        if expected.startswith("Cost") or "detected at step" in expected:
            given, expected = _without_figures(given), _without_figures(expected)
        assert given == expected


def _without_figures(line: str) -> str:
    return re.sub(r"\d[\d.-]*", "…", line).strip()


def test_one_line_in_the_script_finds_the_same(reader: Path) -> None:
    script = blocks(README, "python")[0]
    change = blocks(README, "diff")[0].splitlines()
    added = "".join(f"{line[1:]}\n" for line in change if line.startswith("+"))
    (place,) = [line[1:] for line in change if line.startswith(" ")]
    assert script.count(place) == 1
    (reader / "train.py").write_text(script.replace(place, added + place), encoding="utf-8")
    done = call(reader, sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("undertow: problems: UPD003 parameter-never-updated in head.weight; 200 steps")
    report = json.loads(call(reader, "undertow", "report", "latest", "--json").stdout)
    assert report["culprit"]["code"] == "UPD003"
    assert report["findings"][0]["layers"] == ["head.weight", "head.bias"]


def test_the_picture_is_of_the_demo() -> None:
    """The rows of the picture are layers of the demo's model, cut off up to the block that the text names."""
    picture = next(block for block in blocks(README, "text") if "no gradient" in block).splitlines()
    cut = [line.split()[0] for line in picture if set(line.split()[-1]) == {"–"}]
    flowing = [line.split()[0] for line in picture if set(line.split()[-1]) <= set("░▒▓█")]
    assert cut
    assert all(not name.startswith(("blocks.3", "head")) for name in cut)
    assert all(name.startswith(("blocks.3", "head")) for name in flowing)
