"""Run folders made to hurt whoever opens them. Every one is small on disk: what is large is a hole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
from tests.crash import frame_maker

from undertow.detect.engine.journal import to_record
from undertow.detect.engine.ledger import Change, FindingChange
from undertow.schema import Finding, RunStatus, Severity

HUGE = 60 * 10**9  # bytes


def make_run(folder: Path, frames: int = 5, name: str = "good") -> Path:
    writer = frame_maker.new_writer(folder)
    writer.facts.name = name
    writer.facts.created = 1_700_000_000.0
    writer.facts.status = RunStatus.FINISHED
    writer.event("layers", 0, count=frame_maker.LAYERS)
    for i in range(frames):
        writer.append(frame_maker.make_frame(i))
    writer.write_facts()
    writer.close()
    return folder


def edit(folder: Path, **changes: object) -> None:
    facts = msgspec.json.decode((folder / "run.json").read_bytes())
    (folder / "run.json").write_bytes(msgspec.json.encode({**facts, **changes}))


def _append(folder: Path, name: str, data: bytes) -> None:
    with (folder / name).open("ab") as file:
        file.write(data)


def _finding(code: str) -> bytes:
    finding = Finding(code, "x", Severity.CRITICAL, ("layer.0",), 1, 1, 1, True, 0.9, "x")
    change = FindingChange(Change.OPENED, finding)
    return msgspec.json.encode({"kind": "finding", "step": 1, "time": 0.0, **to_record(change)}) + b"\n"


def _instead(folder: Path, name: str, replace: Callable[[Path], object]) -> None:
    place = folder / name
    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    replace(place)


def _endless(place: Path) -> None:
    place.symlink_to("/dev/zero")


def _loop(place: Path) -> None:
    place.symlink_to(place.name)


def _copies(folder: Path, text: str) -> None:
    (folder / "run.json").write_text(text)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "a segment of 60 GB": lambda f: os.truncate(f / "segments" / "gradient-00000.arrows", HUGE),
    "scalars of 60 GB": lambda f: os.truncate(f / "segments" / "scalars-00000.arrows", HUGE),
    "a journal of 60 GB": lambda f: os.truncate(f / "events.jsonl", HUGE),
    "run.json of 60 GB": lambda f: os.truncate(f / "run.json", HUGE),
    "layers.json of 60 GB": lambda f: os.truncate(f / "layers.json", HUGE),
    "a number of many files": lambda f: (f / "segments" / "scalars-999999999999.arrows").touch(),
    "a far future": lambda f: edit(f, created=1e18),
    "a time before all others": lambda f: edit(f, created=-1e300),
    "an end in a far future": lambda f: edit(f, ended=1e300, status="failed"),
    "an unknown code": lambda f: _append(f, "events.jsonl", _finding("XYZ999")),
    "a code that is no code": lambda f: _append(f, "events.jsonl", _finding("\x1b[2J")),
    "a process that cannot be": lambda f: edit(f, process=2**70, status="running"),
    "steps that cannot be": lambda f: edit(f, steps_seen=-(2**62), seams=[-1, 2**62], frames_dropped=-5),
    "lists in lists": lambda f: _copies(f, '{"format":1,"settings":' + "[" * 100_000),
    "wrong types": lambda f: edit(f, name=7),
    "settings that are lists": lambda f: edit(f, settings={"every": [[]]}, optimizers=[{"groups": 5}]),
    "unreadable scalars": lambda f: (f / "segments" / "scalars-00000.arrows").chmod(0),
    "unreadable run.json": lambda f: (f / "run.json").chmod(0),
    "a pipe for run.json": lambda f: _instead(f, "run.json", os.mkfifo),
    "a pipe for a journal": lambda f: _instead(f, "events.jsonl", os.mkfifo),
    "an endless journal": lambda f: _instead(f, "events.jsonl", _endless),
    "endless layers": lambda f: _instead(f, "layers.json", _endless),
    "a loop for layers": lambda f: _instead(f, "layers.json", _loop),
    "a loop for segments": lambda f: _instead(f, "segments", _loop),
    "a folder within itself": lambda f: _instead(f, "zoom", lambda place: place.symlink_to("..")),
    "a pipe for a segment": lambda f: _instead(f, "segments/gradient-00000.arrows", os.mkfifo),
    "an endless segment": lambda f: _instead(f, "segments/scalars-00000.arrows", _endless),
    "a folder for a journal": lambda f: [(f / "events.jsonl").unlink(), (f / "events.jsonl").mkdir()],
}
