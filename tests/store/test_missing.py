"""Which parts of a run are missing is said in a few words, whatever numbers the names of its files claim."""

from pathlib import Path

from undertow.schema import Frame, RunFacts, RunStatus
from undertow.store.missing import missing_parts
from undertow.store.reader import RunReader
from undertow.store.writer import RunWriter


def written(folder: Path) -> Path:
    writer = RunWriter(folder, RunFacts())
    writer.append(Frame(0, 0, 1.0, {"loss": 1.0}))
    writer.facts.status = RunStatus.FINISHED
    writer.close()
    return folder


def test_a_whole_run_misses_nothing(tmp_path: Path) -> None:
    assert missing_parts(RunReader(written(tmp_path / "run"))) == []


def test_a_file_of_an_enormous_number_does_not_name_all_below_it(tmp_path: Path) -> None:
    folder = written(tmp_path / "run")
    (folder / "segments" / "scalars-999999999999.arrows").touch()
    problems = missing_parts(RunReader(folder))
    assert problems[0] == "segments/scalars-00001.arrows is missing"
    assert problems[-1] == "999,999,999,995 more files of scalars are missing"
    assert len(problems) == 4
