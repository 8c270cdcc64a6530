"""The way of one gradient through the source stays short enough to be drawn, and is drawn in docs/architecture.md."""

from pathlib import Path

from benchmarks.walk.__main__ import STATIONS, walk

MOST_FILES = 35


def test_one_gradient_passes_few_files(capsys):
    taken = walk()
    assert taken.reached == {(part, *station) for part, stations in STATIONS.items() for station in stations}
    files = set().union(*taken.files.values())
    assert len(files) <= MOST_FILES
    drawn = (Path(__file__).parents[2] / "docs/architecture.md").read_text(encoding="utf-8")
    modules = {file.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for file in files}
    assert [module for module in sorted(modules) if f"{module}." not in drawn and f"{module} " not in drawn] == []
