"""Markdown for issue trackers: what names of layers can do to it."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import write
from tests.detect.building import Training

from undertow.run import open_run
from undertow.show.report.markdown import to_markdown

HOSTILE = "a\n\n# b <script>alert(1)</script> ```c"


def markdown(tmp_path: Path) -> str:
    training = Training(HOSTILE, "second").run(30)
    training.run(10, gradient_nonfinite_count={HOSTILE: 3.0}, gradient_state={"second": 2.0})
    run = open_run(write(tmp_path / "run", training, name=HOSTILE))
    return to_markdown(run.diagnose(), [layer.path for layer in run.layers.parameters])


def outside_code(text: str) -> list[str]:
    """The lines that are not within a fence; a fence ends with as many backticks as it began with."""
    kept: list[str] = []
    fence = ""
    for line in text.splitlines():
        ticks = line[: len(line) - len(line.lstrip("`"))]
        if not fence and len(ticks) >= 3:
            fence = ticks
        elif fence and line == fence:
            fence = ""
        elif not fence:
            kept.append(line)
    assert fence == ""
    return kept


def test_names_neither_format_nor_break_lines(tmp_path: Path) -> None:
    lines = outside_code(markdown(tmp_path))
    titles = [line for line in lines if line.startswith("#")]
    assert len(titles) == 2
    assert titles[0] == "## ✖ critical"
    assert titles[1].startswith("### ✖ critical: NUM001")
    assert not any("<script" in line and "\\<script" not in line for line in lines)


def test_only_the_first_finding_is_open(tmp_path: Path) -> None:
    text = markdown(tmp_path)
    assert text.count("<details>") == text.count("</details>") > 0
    assert text.index("### ") < text.index("<details>")
    for part in text.split("<details>")[1:]:
        assert "</summary>\n\n" in part  # else what is inside is not read as Markdown
