"""Folders that are damaged, foreign, from the future, gone or growing: the list says so, and the rest keeps working."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.cli.conftest import write
from tests.detect.building import Training
from tests.store.small_runs import frame, new_writer

QUESTIONS = ("run", "diagnosis", "flow", "weights")


def rewritten(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def torn(folder: Path) -> str:
    text = (folder / "run.json").read_bytes().rstrip()  # there is room for more words at its end
    (folder / "run.json").write_bytes(text[: len(text) // 2])
    return "run.json is damaged"


def newer(folder: Path) -> str:
    rewritten(folder / "run.json", format=999)
    return "has format 999"


def foreign(folder: Path) -> str:
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "run.json").write_text('{"learning_rate": 0.1}', encoding="utf-8")
    return "does not say its format"


def without_layers(folder: Path) -> str:
    (folder / "layers.json").write_text("[]", encoding="utf-8")
    return "layers.json is damaged"


def not_a_file(folder: Path) -> str:
    (folder / "run.json").unlink()
    (folder / "run.json").mkdir()
    return "no ordinary file"


@pytest.mark.parametrize("spoil", [torn, newer, foreign, without_layers, not_a_file])
def test_a_run_that_cannot_be_read_is_listed_with_the_reason(client: TestClient, root: Path, spoil: object) -> None:
    write(root / "spoilt", Training().run(6))
    assert callable(spoil)
    reason = spoil(root / "spoilt")
    listed = {run["id"]: run for run in client.get("/api/runs").json()["runs"]}
    assert listed["spoilt"]["status"] == "unreadable"
    assert reason in listed["spoilt"]["problem"]
    for question in QUESTIONS:
        answer = client.get(f"/api/{question}", params={"run": "spoilt"})
        assert answer.status_code == 422
        assert reason in answer.json()["problem"]
    assert listed["sick"]["status"] == "finished"
    assert client.get("/api/diagnosis", params={"run": "sick"}).json()["health"] == "critical"


def test_segments_full_of_noise_leave_a_run_that_says_what_is_missing(client: TestClient, root: Path) -> None:
    folder = write(root / "noise", Training().run(12))
    for file in (folder / "segments").glob("gradient*"):
        file.write_bytes(b"\x93noise" * 500)
    assert client.get("/api/run", params={"run": "noise"}).status_code == 200
    told = client.get("/api/diagnosis", params={"run": "noise"}).json()
    assert any("gradient-00000.arrows is left out" in reason for reason in told["coverage"]["reasons"])
    loss = client.get("/api/scalar", params={"run": "noise", "name": "loss", "first": 0, "last": 11, "columns": 20})
    assert len(loss.json()["steps"]) == 12


def test_folders_that_are_no_runs_are_passed_over(client: TestClient, root: Path) -> None:
    (root / "notes").mkdir()
    (root / "notes" / "readme.md").write_text("nothing to see", encoding="utf-8")
    (root / "run.txt").write_text("nothing to see", encoding="utf-8")
    (root / "loop").symlink_to(root)
    (root / "dangling").symlink_to(root / "nowhere")
    assert {run["id"] for run in client.get("/api/runs").json()["runs"]} == {"sick", "inner/healthy"}


def test_a_run_that_is_deleted_while_it_is_looked_at(client: TestClient, root: Path) -> None:
    write(root / "doomed", Training().run(30))
    assert client.get("/api/run", params={"run": "doomed"}).status_code == 200
    shutil.rmtree(root / "doomed")
    for question, query in (("scale", {}), ("tile", {"level": 0, "index": 0}), ("line", {"layer": 0})):
        span = {"first": 0, "last": 9, "columns": 9} if question == "line" else {}
        asked = {"run": "doomed", "quantity": "gradient_norm", **query, **span}
        answer = client.get(f"/api/{question}", params=asked)
        assert answer.status_code in (200, 404, 422), question
        assert answer.status_code == 200 or answer.json()["problem"]
    assert client.get("/api/diagnosis", params={"run": "sick"}).json()["health"] == "critical"


def test_a_run_that_has_just_begun_is_found_at_once(client: TestClient, root: Path) -> None:
    assert client.get("/api/runs").status_code == 200
    write(root / "fresh", Training().run(3))
    assert client.get("/api/run", params={"run": "fresh"}).status_code == 200
    for name in ("n" * 5000, "a\0b", "../runs/sick", "/etc"):
        assert client.get("/api/run", params={"run": name}).status_code == 404


def test_a_run_grows_between_two_questions(client: TestClient, root: Path) -> None:
    writer = new_writer(root / "growing")
    for number in range(5):
        writer.append(frame(number, 3))
    assert client.get("/api/run", params={"run": "growing"}).json()["steps"]["recorded"] == 5
    for number in range(5, 300):
        writer.append(frame(number, 3))
    found = 5
    for _ in range(200):
        found = client.get("/api/run", params={"run": "growing"}).json()["steps"]["recorded"]
        if found == 300:
            break
        time.sleep(0.05)  # a folder is not looked at anew for every question
    assert found == 300
    writer.close()


def test_a_clock_that_jumps_back(client: TestClient, root: Path) -> None:
    folder = write(root / "clock", Training().run(5))
    rewritten(folder / "run.json", created=4e9, ended=1.0)
    listed = {run["id"]: run for run in client.get("/api/runs").json()["runs"]}
    assert listed["clock"]["created"] == 4e9
    assert client.get("/api/run", params={"run": "clock"}).status_code == 200
