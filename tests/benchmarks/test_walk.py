"""The way of one gradient through the source stays short enough to be drawn."""

from benchmarks.walk.__main__ import STATIONS, walk

MOST_FILES = 35


def test_one_gradient_passes_few_files(capsys):
    taken = walk()
    assert taken.reached == {(part, *station) for part, stations in STATIONS.items() for station in stations}
    assert len(set().union(*taken.files.values())) <= MOST_FILES
