"""Finding runs among damaged neighbours, naming new ones, and the `latest` link."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from tests.store.small_runs import frame, new_writer

from undertow.errors import UnreadableRunError, UnwritableRunError
from undertow.schema import FORMAT_VERSION, Frame
from undertow.store import RunReader, find_runs, new_run_folder, point_latest
from undertow.store.journal import Journal, read_journal


def test_find_runs_survives_damaged_neighbours(tmp_path: Path) -> None:
    good = new_writer(tmp_path / "good")
    good.facts.created = 2e9
    good.append(frame(0, 3))
    good.append(Frame(1, 7, 0.0, {"loss": math.inf}, {}))
    good.close()
    nested = new_writer(tmp_path / "group" / "nested")
    nested.append(frame(0, 3))
    nested.close()
    (tmp_path / "group" / "nested" / "segments" / "gradient-00000.arrows").write_bytes(b"rubbish!" * 9)
    for name, content in {"cut": "{", "newer": f'{{"format": {FORMAT_VERSION + 1}}}', "list": "[]"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(content)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "looped").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "empty" / "pipe")
    found = {summary.folder.relative_to(tmp_path).as_posix(): summary for summary in find_runs(tmp_path)}
    assert found.keys() == {"good", "group/nested", "cut", "newer", "list"}
    assert next(iter(found)) == "good"  # the newest first
    one = found["good"]
    assert (one.name, one.status, one.steps, one.last_step, one.last_loss) == ("test", "running", 2, 7, math.inf)
    assert one.problem == ""
    assert found["group/nested"].steps == 1
    assert found["cut"].status == found["newer"].status == found["list"].status == "unreadable"
    assert str(FORMAT_VERSION + 1) in found["newer"].problem
    assert find_runs(tmp_path / "nowhere") == []
    assert [summary.folder for summary in find_runs(tmp_path / "good")] == [tmp_path / "good"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no run"),
        ("{", "damaged"),
        ('{"format": 99}', "format 99.*up to 1.*Upgrade"),
        ('{"format": 1, "status": "asleep"}', "damaged"),
        ("{}", "does not say its format"),
    ],
)
def test_what_is_no_run_says_so(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(UnreadableRunError, match=words) as caught:
        RunReader(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("content", ["{}", '{"layers": 3}', '{"layers": [3]}', '{"layers": [], "graph": 3}'])
def test_a_damaged_list_of_layers_is_told_in_plain_words(tmp_path: Path, content: str) -> None:
    new_writer(tmp_path / "run").close()
    (tmp_path / "run" / "layers.json").write_text(content)
    with pytest.raises(UnreadableRunError, match=r"layers\.json is damaged: it") as caught:
        RunReader(tmp_path / "run")
    assert not any(word in str(caught.value) for word in ("'int'", "object", "Expected", "iterable"))


def test_a_path_that_is_not_there_or_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UnreadableRunError, match="does not exist"):
        RunReader(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UnreadableRunError, match="not a folder"):
        RunReader(tmp_path / "file")


def test_new_run_folders_never_meet(tmp_path: Path) -> None:
    folders = {new_run_folder(tmp_path / "runs", "my run/../x") for _ in range(5)}
    assert len(folders) == 5
    assert all(folder.is_dir() and folder.parent == tmp_path / "runs" for folder in folders)
    assert all("my-run-..-x" in folder.name for folder in folders)
    assert new_run_folder(tmp_path).parent == tmp_path
    (tmp_path / "file").write_text("x")
    with pytest.raises(UnwritableRunError, match="cannot be made"):
        new_run_folder(tmp_path / "file")


def test_latest_follows_the_newest_run(tmp_path: Path) -> None:
    first, second = new_run_folder(tmp_path, "a"), new_run_folder(tmp_path, "b")
    assert point_latest(tmp_path, first)
    assert point_latest(tmp_path, second)
    assert (tmp_path / "latest").resolve() == second
    assert os.readlink(tmp_path / "latest") == second.name  # the folder of runs may be moved


def test_latest_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no links here")

    folder = new_run_folder(tmp_path)
    monkeypatch.setattr(Path, "symlink_to", refuse)
    assert not point_latest(tmp_path, folder)
    monkeypatch.undo()
    (tmp_path / "latest").mkdir()
    assert not point_latest(tmp_path, folder)
    assert (tmp_path / "latest").is_dir()


def test_a_torn_line_does_not_swallow_the_next(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append("one", 1, {"text": "ü"})
    journal.close()
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b'{"kind": "torn", "te')
    assert [event["kind"] for event in read_journal(tmp_path)[0]] == ["one"]
    again = Journal(tmp_path)
    again.append("two", None, {})
    again.close()
    events, damaged = read_journal(tmp_path)
    assert [(event["kind"], event["step"]) for event in events] == [("one", 1), ("two", None)]
    assert damaged == 1
