"""Runs behind addresses: sent, read, resumed, and what happens when the place fails."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from tests.store.small_runs import frame, new_writer

import undertow
from undertow.cli import main
from undertow.errors import SettingError, UnreadableRunError, UnwritableRunError
from undertow.schema import RunStatus
from undertow.schema.addresses import address_of
from undertow.settings import Settings
from undertow.store.cloud import cache
from undertow.store.cloud import mirror as mirror_module
from undertow.store.cloud.mirror import Mirror
from undertow.store.cloud.place import Place
from undertow.store.cloud.run_files import files_here
from undertow.store.cloud.spool import begin_upload
from undertow.store.cloud.upload import Upload, Uploader, send_run
from undertow.store.reader import RunReader


class Unreliable(MemoryFileSystem):
    """A place that loses its network, refuses writes, or says nothing at all."""

    protocol = "unreliable"
    store: dict[str, object] = {}  # noqa: RUF012 (shared by all, like a real place)
    pseudo_dirs: list[str] = [""]  # noqa: RUF012
    writes_left = 10**9
    silent: threading.Event | None = None

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: object) -> None:
        self._fail()
        type(self).writes_left -= 1
        super().pipe_file(path, value, mode, **options)

    def find(self, path: str, **options: object) -> object:
        self._fail()
        return super().find(path, **options)

    def _fail(self) -> None:
        if self.silent is not None:
            self.silent.wait()
        if self.writes_left <= 0:
            raise PermissionError("the credentials\nare wrong")


fsspec.register_implementation("unreliable", Unreliable, clobber=True)


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("UNDERTOW_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("UNDERTOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Unreliable, "writes_left", 10**9)
    monkeypatch.setattr(Unreliable, "silent", None)
    yield
    MemoryFileSystem.store.clear()
    Unreliable.store.clear()


def train(address: str, steps: int = 5, **settings: object) -> undertow.Watch:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with undertow.watch(model, run_dir=address, every=1, **settings) as watch:  # type: ignore[arg-type]
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(3, 4)).square().mean().backward()
            optimizer.step()
    return watch


def written(folder: Path, frames: int, first: int = 0, **options: object) -> None:
    writer = new_writer(folder, **options)
    for number in range(first, first + frames):
        assert writer.append(frame(number, 3))
    writer.facts.status = RunStatus.FINISHED
    writer.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("s3://bucket/run/", "s3://bucket/run"),
        (Path("s3://bucket/run"), "s3://bucket/run"),
        ("file:///tmp/run", "file:///tmp/run"),
        (Path("file:///tmp/run"), "file:///tmp/run"),
        ("memory://a", "memory://a"),
        ("C:/runs/a", None),
        ("runs/a", None),
        ("/runs/a:b/c", None),
    ],
)
def test_addresses_are_told_from_paths(path: str | Path, address: str | None) -> None:
    assert address_of(path) == address


def test_a_watched_training_arrives_and_reads_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    watch = train("memory://bucket/run")
    here, there = watch.run, undertow.open_run("memory://bucket/run")
    assert there.status == "finished"
    assert there.name == "run"
    np.testing.assert_array_equal(here.matrix("gradient_norm"), there.matrix("gradient_norm"))
    np.testing.assert_array_equal(here.scalars("loss"), there.scalars("loss"))
    assert here.diagnose() == undertow.open_run(watch.folder).diagnose()
    assert "undertow report memory://bucket/run" in capfd.readouterr().err
    assert {file.name for file in files_here(watch.folder)} == set(Place("memory://bucket/run").files())


def test_commands_read_an_address(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    train("memory://bucket/runs/one", quiet=True)
    assert main(["report", "memory://bucket/runs/one", "--json"]) == 0
    assert '"recorded": 5' in capfd.readouterr().out
    assert main(["check", "memory://bucket/runs/one", "--fail-on", "critical"]) == 0
    assert main(["export", "memory://bucket/runs/one", "--to", "csv", "-o", str(tmp_path / "out.csv")]) == 0
    assert (tmp_path / "out.csv").read_text().count("\n") > 5
    capfd.readouterr()
    assert main(["runs", "memory://bucket/runs", "--json"]) == 0
    listing = capfd.readouterr().out
    assert '"folder": "memory://bucket/runs/one"' in listing
    assert '"steps": 5' in listing
    assert '"problem": null' in listing


def test_a_place_that_holds_a_run_is_refused_before_training() -> None:
    train("memory://bucket/run", quiet=True)
    with pytest.raises(UnwritableRunError, match="already holds"):
        train("memory://bucket/run", quiet=True)


def test_a_run_is_resumed_from_its_address_on_a_machine_without_a_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train("memory://bucket/run", quiet=True)
    monkeypatch.setenv("UNDERTOW_SPOOL", str(tmp_path / "another machine"))
    train("memory://bucket/run", resume=True, quiet=True)
    run = undertow.open_run("memory://bucket/run")
    assert run.steps.tolist() == list(range(10))
    assert run.facts.seams == [5]


def test_wrong_credentials_never_reach_the_training(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Unreliable, "writes_left", 0)
    watch = train("unreliable://bucket/run", quiet=True)
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1
    assert "not uploaded to unreliable://bucket/run (PermissionError: the credentials are wrong)" in said[0]
    assert f"python -m undertow.store.cloud {watch.folder} unreliable://bucket/run" in said[0]
    assert len(undertow.open_run(watch.folder).steps) == 5
    monkeypatch.setattr(Unreliable, "writes_left", 10**9)
    train("unreliable://bucket/run", resume=True, quiet=True)  # goes on from what lies here
    assert undertow.open_run("unreliable://bucket/run").steps.tolist() == list(range(10))


def test_a_place_that_says_nothing_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(Unreliable, "silent", threading.Event())
    written(tmp_path / "run", 3)
    uploader = Uploader(tmp_path / "run", Place("unreliable://bucket/run"), said.append, interval=0.01)
    uploader.start()
    assert not uploader.close(patience=0.2)
    assert "not done within 0 s" in said[0]
    assert str(tmp_path / "run") in said[0]
    assert Unreliable.silent is not None
    Unreliable.silent.set()
    uploader._thread.join(20)


def test_a_lost_network_is_told_once_and_made_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(Unreliable, "writes_left", 2)
    written(tmp_path / "run", 3)
    uploader = Uploader(tmp_path / "run", Place("unreliable://bucket/run"), said.append, interval=0.001)
    uploader.start()
    wait_for(lambda: bool(said))
    assert "your training goes on" in said[0]
    monkeypatch.setattr(Unreliable, "writes_left", 10**9)
    assert uploader.close(patience=20), said
    assert len(said) == 1
    assert len(undertow.open_run("unreliable://bucket/run").steps) == 3


def test_only_what_is_missing_is_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "run", 3)
    total = len(files_here(tmp_path / "run"))
    place = Place("memory://bucket/run")
    assert send_run(tmp_path / "run", place.address).files >= total
    place.remove("segments/scalars-00000.arrows")
    place.write("segments/gradient-00000.arrows", b"half")
    again = {file.name for file in Upload(tmp_path / "run", place).missing()}
    assert len(again) == total  # nothing is known before the first look
    sent = send_run(tmp_path / "run", place.address)
    documents = sum(1 for file in files_here(tmp_path / "run") if "/" not in file.name)
    assert sent.files == 2 + documents
    assert len(undertow.open_run(place.address).steps) == 3


def test_another_run_is_never_overwritten(tmp_path: Path) -> None:
    written(tmp_path / "one", 3)
    send_run(tmp_path / "one", "memory://bucket/run")
    written(tmp_path / "two", 5)
    with pytest.raises(UnwritableRunError, match="another run"):
        send_run(tmp_path / "two", "memory://bucket/run")
    assert len(undertow.open_run("memory://bucket/run").steps) == 3


def test_a_growing_run_is_sent_and_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_module, "_SOONEST", 0.0)
    writer = new_writer(tmp_path / "run")
    upload = Upload(tmp_path / "run", Place("memory://bucket/run"))
    assert writer.append(frame(0, 3))
    upload.pass_over()
    run = undertow.open_run("memory://bucket/run")
    assert run.steps.tolist() == [0]
    assert run.status == "running"
    for number in range(1, 4):
        assert writer.append(frame(number, 3))
    upload.pass_over(last=True)
    assert run.refresh()
    assert run.steps.tolist() == [0, 1, 2, 3]
    writer.facts.status = RunStatus.FINISHED
    writer.close()
    upload.pass_over(last=True)
    assert run.refresh()
    assert run.status == "finished"


def test_growing_files_are_held_back_but_documents_are_not(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "run")
    upload = Upload(tmp_path / "run", Place("memory://bucket/run"))
    assert writer.append(frame(0, 3))
    upload.pass_over()
    upload._growing_due = time.monotonic() + 1000
    assert writer.append(frame(1, 3))
    writer.event("note", 1, reason="x")
    assert upload.pass_over().files == 1
    assert len(undertow.open_run("memory://bucket/run").steps) == 1
    writer.close()


def test_what_a_disk_budget_takes_away_goes_there_too(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    written(folder, 3)
    place = Place("memory://bucket/run")
    upload = Upload(folder, place)
    upload.pass_over(last=True)
    mirror = Mirror(place.address)
    mirror.fetch()
    gone = next(file.name for file in files_here(folder) if file.name.startswith("segments/gradient"))
    (folder / gone).unlink()
    upload.pass_over(last=True)
    assert gone not in place.files()
    mirror.fetch()
    assert not (mirror.folder / gone).exists()


def test_closed_segments_are_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "run", 3)
    send_run(tmp_path / "run", "memory://bucket/run")
    Mirror("memory://bucket/run").fetch()
    fetched: list[str] = []
    read = Place.read
    monkeypatch.setattr(Place, "read", lambda self, name: fetched.append(name) or read(self, name))
    Mirror("memory://bucket/run").fetch()
    assert fetched == []


def test_copies_that_nobody_looks_at_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERTOW_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "_MOST_KEPT", 2_500)

    def copy(name: str, days: float) -> Path:
        folder = cache.cache_folder(f"memory://{name}")
        folder.mkdir(parents=True)
        (folder / "segment").write_bytes(bytes(1_000))
        (folder / cache.VERSIONS_FILE).write_bytes(b"{}")
        then = time.time() - days * 86_400
        os.utime(folder / cache.VERSIONS_FILE, (then, then))
        return folder

    oldest, old, yesterday, now = copy("oldest", 9), copy("old", 8), copy("yesterday", 1.5), copy("now", 0)
    foreign = tmp_path / "mine" / "data"
    foreign.mkdir(parents=True)
    cache.make_room(now)
    assert [folder.exists() for folder in (oldest, old, yesterday, now)] == [False, False, True, True]
    monkeypatch.setattr(cache, "_MOST_KEPT", 0)
    cache.make_room(now)
    assert [folder.exists() for folder in (yesterday, now, foreign)] == [False, True, True]


def test_names_from_elsewhere_do_not_lead_out_of_the_cache(tmp_path: Path) -> None:
    written(tmp_path / "run", 1)
    send_run(tmp_path / "run", "memory://bucket/run")
    MemoryFileSystem.store["/bucket/run/../../evil"] = MemoryFileSystem.store["/bucket/run/run.json"]
    mirror = Mirror("memory://bucket/run")
    mirror.fetch()
    assert not list(tmp_path.rglob("evil"))
    assert len(RunReader(mirror.folder).steps) == 1


def test_a_folder_behind_a_file_address(tmp_path: Path) -> None:
    written(tmp_path / "run", 3)
    send_run(tmp_path / "run", f"file://{tmp_path}/shared/deep/run")
    assert len(undertow.open_run(f"file://{tmp_path}/shared/deep/run").steps) == 3


def test_no_run_there_and_no_such_file_system() -> None:
    with pytest.raises(UnreadableRunError, match="no run in memory://nothing"):
        undertow.open_run("memory://nothing")
    with pytest.raises(SettingError, match="knows no nosuch://"):
        undertow.open_run("nosuch://a/b")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(SettingError, match=r"undertow\[cloud\]"):
        Place("s3://bucket/run")


def test_the_folder_of_runs_is_on_this_machine() -> None:
    with pytest.raises(SettingError, match="run_dir"):
        Settings.resolve(directory="s3://bucket/runs")
    assert Settings.resolve(run_dir="s3://bucket/run").run_dir == "s3://bucket/run"


def test_the_module_sends_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from undertow.store.cloud.__main__ import main as send

    monkeypatch.setattr(sys, "stderr", io.StringIO())
    written(tmp_path / "run", 2)
    assert send([str(tmp_path / "run"), "memory://bucket/run"]) == 0
    assert send([str(tmp_path / "nothing"), "memory://bucket/other"]) == 3
    assert send([]) == 2
    assert len(undertow.open_run("memory://bucket/run").steps) == 2


@pytest.mark.parametrize("given", [True, False])
def test_a_spool_folder_of_another_user_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: bool
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if not given:
        monkeypatch.delenv("UNDERTOW_SPOOL")
    owner = os.getuid()
    monkeypatch.setattr("os.getuid", lambda: owner + 1)
    if not given:  # it was there before
        (tmp_path / f"undertow-spool-{owner + 1}").symlink_to(tmp_path)
    with pytest.raises(SettingError, match="belongs to another user"):
        begin_upload("memory://bucket/run", resume=False, say=print)
