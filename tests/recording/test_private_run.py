"""A run is its owner's: others cannot read it unless they are meant to, and it holds no secret of the command line."""

import stat
from pathlib import Path

import pytest

from undertow.recording.run_metadata import facts_here, folder_of
from undertow.recording.run_recording import RunRecording
from undertow.schema import Frame, RunStatus
from undertow.settings import Settings


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()}


def record(settings: Settings) -> Path:
    recording = RunRecording(settings, facts_here(settings), lambda: False)
    recording.record([Frame(0, 0, 1.0, {"loss": 1.0}), Frame(1, 1, 2.0, {"loss": 0.5})])
    recording.close(RunStatus.FINISHED, "", True)
    return recording.folder


@pytest.mark.parametrize("is_named", [True, False])
def test_nobody_else_can_read_a_run(tmp_path: Path, is_named: bool) -> None:
    place = {"run_dir": tmp_path / "a" / "run"} if is_named else {"directory": tmp_path}
    folder = record(Settings(quiet=True, **place))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert modes(folder) == {0o600}


def test_a_shared_run_follows_the_umask(tmp_path: Path) -> None:
    folder = record(Settings(run_dir=tmp_path / "run", shared=True, quiet=True))
    assert stat.S_IMODE(folder.stat().st_mode) & 0o055 == 0o055
    assert all(mode & 0o044 == 0o044 for mode in modes(folder))


def test_a_folder_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o750)
    folder, _ = folder_of(Settings(run_dir=tmp_path / "run"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750


def test_the_command_line_is_kept_without_its_secrets_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", "--api-key=hunter2", "--lr=0.1"])
    assert facts_here(Settings()).command == ["train.py", "--api-key=[redacted]", "--lr=0.1"]
    assert facts_here(Settings(command_line=False)).command == []
