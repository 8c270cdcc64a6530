"""What the pages ask for is answered from the run, and what is wrong is said."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.cli.conftest import write
from tests.detect.building import Training
from tests.show.web.conftest import ADDRESS, TOKEN

from undertow.run import Run
from undertow.schema import STREAMS, Block, Frame, Layer, LayerGraph, LayerTable, RunFacts
from undertow.show.page import STATIC
from undertow.show.web.app import build_app
from undertow.store.writer import RunWriter
from undertow.views.cell_codes import NOT_A_NUMBER, NOT_SAMPLED, decode
from undertow.views.tiles import COLUMNS


def test_the_list_has_every_run_with_its_state(client: TestClient) -> None:
    runs = {run["id"]: run for run in client.get("/api/runs").json()["runs"]}
    assert set(runs) == {"sick", "inner/healthy"}
    assert runs["sick"]["name"] == "sick one"
    assert runs["sick"]["steps"] == 12
    assert runs["sick"]["last_loss"] == 1.0


def test_a_folder_that_cannot_be_read_is_listed_and_the_rest_goes_on(client: TestClient, root: Path) -> None:
    (root / "broken").mkdir()
    (root / "broken" / "run.json").write_text("{", encoding="utf-8")
    (root / "later").mkdir()
    (root / "later" / "run.json").write_text('{"format": 999}', encoding="utf-8")
    runs = {run["id"]: run for run in client.get("/api/runs").json()["runs"]}
    assert runs["broken"]["status"] == runs["later"]["status"] == "unreadable"
    assert runs["later"]["problem"]
    assert runs["sick"]["status"] == "finished"
    answer = client.get("/api/run", params={"run": "broken"})
    assert answer.status_code == 422
    assert answer.json()["problem"]


def test_a_run_is_described(client: TestClient) -> None:
    run = client.get("/api/run", params={"run": "sick"}).json()
    assert [layer["path"] for layer in run["layers"]["parameters"]][:2] == ["first.weight", "first.bias"]
    assert run["steps"] == {"first": 0, "last": 11, "recorded": 12}
    assert {"name": "gradient_norm", "modules": False}.items() <= run["quantities"][0].items()
    assert not any("sketch" in quantity["name"] for quantity in run["quantities"])


def test_the_diagnosis_is_the_one_of_the_report(client: TestClient, root: Path) -> None:
    found = client.get("/api/diagnosis", params={"run": "sick"}).json()
    expected = Run(root / "sick").diagnose()
    assert found["health"] == expected.health == "critical"
    assert [one["code"] for one in found["findings"]] == [one.code for one in expected.findings]
    assert found["story"] == expected.story
    assert found["from_journal"] is False


def test_a_tile_holds_the_numbers_and_says_why_there_is_none(client: TestClient) -> None:
    answer = client.get("/api/tile", params={"run": "sick", "quantity": "gradient_norm", "level": 0, "index": 0})
    codes = np.frombuffer(answer.content, "<u2").reshape(-1, COLUMNS)
    assert answer.headers["undertow-last-step"] == "11"
    assert decode(codes)[:, :7] == pytest.approx(0.1, rel=2**-8)
    assert (codes[:4, 7:12] == NOT_A_NUMBER).all()  # first and second
    assert decode(codes)[4:, 7:12] == pytest.approx(0.1, rel=2**-8)
    assert (codes[:, 12:] == NOT_SAMPLED).all()


def test_a_scalar_and_a_row_come_as_lines(client: TestClient) -> None:
    span = {"run": "sick", "first": 2, "last": 10_000, "columns": 3}
    loss = client.get("/api/scalar", params={**span, "name": "loss"}).json()
    assert loss["steps"] == [2, 6, 10]
    assert loss["mean"] == [1.0, 1.0, 1.0]
    line = client.get("/api/line", params={**span, "quantity": "update_ratio", "layer": 1, "columns": 300}).json()
    assert line["steps"] == list(range(2, 12))
    assert line["maximum"] == pytest.approx([1e-3] * 10)


BAD = [
    ("run", {}), ("run", {"run": "none"}), ("run", {"run": "../runs/sick"}), ("run", {"run": "/etc"}),
    ("tile", {"run": "sick", "quantity": "nonsense", "level": 0, "index": 0}),
    ("tile", {"run": "sick", "quantity": "gradient_sketch", "level": 0, "index": 0}),
    ("tile", {"run": "sick", "quantity": "gradient_norm", "level": 99, "index": 0}),
    ("tile", {"run": "sick", "quantity": "gradient_norm", "level": 0, "index": -1}),
    ("tile", {"run": "sick", "quantity": "gradient_norm", "level": "∞", "index": 0}),
    ("tile", {"run": "sick", "quantity": "gradient_norm", "level": 0, "index": 0, "statistic": "codes"}),
    ("line", {"run": "sick", "quantity": "gradient_norm", "layer": 10**6, "first": 0, "last": 9, "columns": 9}),
    ("line", {"run": "sick", "quantity": "gradient_norm", "layer": 0, "first": 0, "last": 9, "columns": 10**9}),
    ("scalar", {"run": "sick", "name": "nope", "first": 0, "last": 9, "columns": 9}),
    ("explain", {"code": "NOPE"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "query"), BAD)
def test_a_question_that_makes_no_sense_gets_words(client: TestClient, name: str, query: dict[str, object]) -> None:
    answer = client.get(f"/api/{name}", params=query)  # type: ignore[arg-type]
    assert 400 <= answer.status_code < 500
    assert answer.json()["problem"]


def test_tiles_far_beyond_the_run_are_empty(client: TestClient) -> None:
    query = {"run": "sick", "quantity": "gradient_norm", "level": 40, "index": 30}
    codes = np.frombuffer(client.get("/api/tile", params=query).content, "<u2")
    assert (codes == NOT_SAMPLED).all()


@pytest.mark.parametrize("path", ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "/etc/passwd", "pages/../../app.py"])
def test_files_outside_the_static_folder_are_out_of_reach(client: TestClient, path: str) -> None:
    answer = client.get(f"/static/{path}")
    assert answer.status_code == 404


def test_a_run_that_was_deleted_is_missed_politely(client: TestClient, root: Path) -> None:
    assert client.get("/api/run", params={"run": "sick"}).status_code == 200
    shutil.rmtree(root / "sick")
    answer = client.get("/api/run", params={"run": "sick"})
    assert answer.status_code in (200, 404, 422)  # for a moment it is still remembered
    assert client.get("/api/run", params={"run": "inner/healthy"}).status_code == 200


def test_a_run_of_no_steps_has_a_page(client: TestClient, root: Path) -> None:
    write(root / "empty", Training())
    run = client.get("/api/run", params={"run": "empty"}).json()
    assert run["steps"]["recorded"] == 0
    assert client.get("/api/diagnosis", params={"run": "empty"}).json()["health"] is None
    scale = client.get("/api/scale", params={"run": "empty", "quantity": "gradient_norm"}).json()
    assert 0 < scale["low"] < scale["high"]


def test_five_thousand_layers_with_long_names(client: TestClient, root: Path) -> None:
    writer = RunWriter(root / "wide", RunFacts(name="wide"))
    writer.set_layers(LayerTable.of(Layer(f"{'long' * 50}.{i}.weight") for i in range(5000)), LayerGraph())
    values = np.ones((len(STREAMS["update"].quantities), 5000), np.float32)
    for step in range(3):
        block = Block("update", np.arange(5000, dtype=np.int32), values)
        assert writer.append(Frame(step, step, 0.0, {}, {"update": block}))
    writer.close()
    run = client.get("/api/run", params={"run": "wide"}).json()
    assert len(run["layers"]["parameters"]) == 5000
    query = {"run": "wide", "quantity": "update_norm", "level": 0, "index": 0}
    codes = np.frombuffer(client.get("/api/tile", params=query).content, "<u2").reshape(5000, COLUMNS)
    assert (decode(codes)[:, :3] == 1).all()


HOSTILE = ["<script>alert(1)</script>", "\u202egnp.exe", 'x" onload="alert(1)', "n" * 10_000, "\x00\n\t", "</title>"]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name[:12]))
def test_names_are_only_ever_data(client: TestClient, root: Path, name: str) -> None:
    write(root / "named", Training(name or "x", "head").run(3), name=name)
    answer = client.get("/api/run", params={"run": "named"})
    assert answer.headers["content-type"] == "application/json"
    run = json.loads(answer.text)
    assert run["name"] == name
    assert run["layers"]["parameters"][0]["path"] == f"{name}.weight"


def test_no_module_of_the_page_makes_markup_from_text() -> None:
    """Whatever is shown goes through text nodes."""
    for file in STATIC.rglob("*.js"):
        text = file.read_text(encoding="utf-8")
        for way in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "srcdoc",
        ):
            assert way not in text, f"{file.name} uses {way}"


def test_the_page_asks_no_other_host() -> None:
    for file in STATIC.rglob("*.*"):
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, file.name
        assert "https://" not in text, file.name


def test_flow_and_weights_of_a_run(client: TestClient) -> None:
    flow = client.get("/api/flow", params={"run": "inner/healthy"}).json()
    assert [node["layer_name"] for node in flow["flow_network"]["nodes"]] == ["first", "second", "third", "head"]
    assert flow["steps"] == {"first": 0, "last": 19, "recorded": 20}
    weights = client.get("/api/weights", params={"run": "inner/healthy"}).json()
    assert {tensor["path"] for tensor in weights["tensors"]} >= {"first.weight", "head.bias"}


def test_palettes_are_those_of_every_medium(client: TestClient) -> None:
    colours = client.get("/api/colours").json()
    assert set(colours["sequential"]) == {"Default", "HighContrast", "ColorBlind", "Monochrome"}
    assert all(len(shades) == 256 for shades in (*colours["sequential"].values(), *colours["diverging"].values()))
    for marks in colours["marks"].values():
        assert {mark["name"] for mark in marks} == {"not finite", "not sampled", "frozen", "no gradient", "zero"}
        assert len({(*mark["colour"], mark["pattern"]) for mark in marks}) == len(marks)


def test_many_layers_are_told_in_few_words(client: TestClient, root: Path) -> None:
    hit = {f"blocks.{block}.{part}": 1.0 for block in range(3) for part in ("up", "down")}
    training = Training(*hit, "blocks.3.up", "head").run(8)
    training.run(4, gradient_nonfinite_count=hit, gradient_norm=dict.fromkeys(hit, float("nan")))
    write(root / "blocks", training)
    first = client.get("/api/diagnosis", params={"run": "blocks"}).json()["findings"][0]
    assert len(first["layers"]) == 12
    assert first["place"] == "blocks.0–2 (12 tensors)"


def test_a_code_is_explained(client: TestClient) -> None:
    assert client.get("/api/explain", params={"code": "NUM001"}).json()["summary"]


def test_addresses_are_relative_so_that_any_path_prefix_works(client: TestClient) -> None:
    page = client.get("/").text
    assert 'href="/' not in page
    assert 'src="/' not in page
    for file in STATIC.rglob("*.js"):
        text = file.read_text(encoding="utf-8")
        for quote in "\"'`":
            assert f"{quote}/api" not in text
            assert f"{quote}/static" not in text


def test_two_runs_are_compared(client: TestClient) -> None:
    found = client.get("/api/divergence", params={"run": "sick", "other": "inner/healthy"}).json()
    assert found["step"] == 7
    assert set(found["layers"]) == {"first.weight", "first.bias", "second.weight", "second.bias"}
    assert client.get("/api/divergence", params={"run": "inner/healthy", "other": "sick"}).json()["step"] == 7
    assert client.get("/api/divergence", params={"run": "sick", "other": "sick"}).json()["step"] is None


def test_modules_that_are_loaded_ahead_exist(client: TestClient) -> None:
    addresses = re.findall(r'href="(static/[^"]+)"|src="(static/[^"]+)"', client.get("/").text)
    assert len(addresses) > 10
    for pair in addresses:
        assert client.get(f"/{pair[0] or pair[1]}").status_code == 200


def test_a_mistake_of_ours_is_called_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("undertow.show.web.app.weights", lambda *of: 1 / 0)
    with TestClient(build_app(root, TOKEN), base_url=ADDRESS, raise_server_exceptions=False) as client:
        answer = client.get(f"/api/weights?run=sick&token={TOKEN}")
    assert answer.status_code == 500
    assert "ZeroDivisionError" in answer.json()["problem"]
    assert "content-security-policy" in answer.headers
