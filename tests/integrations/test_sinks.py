"""Sinks with the real packages, and sinks that fail: the training and the run are the same with and without them."""

from __future__ import annotations

import http.server
import json
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import undertow
from undertow.errors import SettingError
from undertow.integrations.sinks import feed, webhook
from undertow.integrations.sinks.digest import NAMES
from undertow.schema import Finding
from undertow.settings import Settings

pytestmark = pytest.mark.filterwarnings("default")  # theirs are not ours to mend
STEPS = 12


class Kept:
    """A sink of the user's own."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.found: list[Finding] = []
        self.closed = False

    def numbers(self, step: int, values: Any) -> None:
        self.rows.append((step, dict(values)))

    def finding(self, finding: Finding) -> None:
        self.found.append(finding)

    def close(self) -> None:
        self.closed = True


def train(folder: Path, *sinks: Any, rate: float = 50.0, steps: int = STEPS) -> tuple[undertow.Run, torch.Tensor]:
    """With a rate of 50 the loss turns infinite: there is something to find."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with undertow.watch(model, run_dir=folder, every=1, activations=False, sinks=list(sinks)) as watch:
        for _ in range(steps):
            inputs = torch.randn(32, 8)
            loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return watch.run, torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.fixture(autouse=True)
def _every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "LEAST_BETWEEN", 0.0)
    monkeypatch.setattr(webhook, "_PAUSE", 0.01)


class Server:
    """An address on this machine that answers as told, and keeps what it was sent."""

    def __init__(self, status: int = 200, wait: threading.Event | None = None) -> None:
        self.bodies: list[Any] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(handler) -> None:  # noqa: N805
                self.bodies.append(json.loads(handler.rfile.read(int(handler.headers["Content-Length"]))))
                if wait is not None:
                    wait.wait(60)
                handler.send_response(status)
                handler.end_headers()

            def log_message(handler, *_: Any) -> None:  # noqa: N805
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}/secret"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def address() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def test_a_sink_gets_the_numbers_of_the_run_and_its_findings(tmp_path: Path) -> None:
    sink = Kept()
    run, watched = train(tmp_path / "run", sink)
    assert sink.closed
    assert [step for step, _ in sink.rows] == list(range(STEPS))
    assert set().union(*(values for _, values in sink.rows)) <= set(NAMES)
    for step in (0, 3):
        values, norms = sink.rows[step][1], run.matrix("gradient_norm")[step]
        norms = norms[~np.isnan(norms)]  # modules have none
        assert values["gradient_norm_min"] == pytest.approx(norms.min())
        assert values["gradient_norm_max"] == pytest.approx(norms.max())
        assert values["gradient_norm"] == pytest.approx(float((norms.astype(float) ** 2).sum() ** 0.5), rel=1e-5)
        assert values["loss"] == pytest.approx(run.scalars("loss")[step])
        assert values["learning_rate"] == 50
    diagnosis = run.diagnose()
    assert {finding.code for finding in sink.found} == {finding.code for finding in diagnosis.findings}
    last = sink.rows[-1][1]
    assert last["health"] == 3
    assert last["gradient_nonfinite_count"] > 0
    assert sum(last[f"findings_{word}"] for word in ("info", "mild", "moderate", "severe", "critical")) == len(
        diagnosis.findings
    )
    _, plain = train(tmp_path / "plain")
    assert torch.equal(watched.nan_to_num(), plain.nan_to_num())


def test_steps_that_come_fast_are_passed_on_in_part_with_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "LEAST_BETWEEN", 3600.0)
    sink = Kept()
    train(tmp_path / "run", sink, rate=0.01)
    assert [step for step, _ in sink.rows] == [0, STEPS - 1]


def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run, _ = train(tmp_path / "run", "tensorboard", f"tensorboard:{tmp_path / 'logs'}")
    for folder in (tmp_path / "run" / "tensorboard", tmp_path / "logs"):
        events = EventAccumulator(str(folder))
        events.Reload()
        losses = events.Scalars("undertow/loss")
        assert [event.step for event in losses] == list(range(STEPS))
        assert [event.value for event in losses[:4]] == pytest.approx(run.scalars("loss")[:4].tolist())
        assert len(events.Tags()["scalars"]) <= len(NAMES)
        assert "undertow/NUM001" in events.Tags()["tensors"]
        text = events.Tensors("undertow/NUM001")[0].tensor_proto.string_val[0].decode()
        assert "non-finite" in text


def test_prometheus_is_scraped_while_the_training_runs(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pages: list[str] = []

    class Scraper(Kept):
        """Its `close` runs beside that of Prometheus, so it looks before: when it is told of a critical finding."""

        def finding(self, finding: Finding) -> None:
            if finding.code == "NUM001":
                for _ in range(200):
                    time.sleep(0.02)  # the other sink has a thread of its own, which may be later
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                        page = answer.read().decode()
                    if 'code="NUM001"' in page:
                        pages.append(page)
                        return

    held = threading.Event()
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with undertow.watch(model, run_dir=tmp_path / "run", every=1, sinks=[f"prometheus:{port}", Scraper()]):
        for step in range(40):
            loss = model(torch.randn(4, 8)).square().mean() * (float("inf") if step == 3 else 1.0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step > 3 and not pages:
                held.wait(0.1)
    assert pages, "the endpoint never showed the finding"
    assert re.search(
        r'undertow_finding\{code="NUM001",layer="weight",name="non-finite-gradient",run="run",sev', pages[0]
    )
    assert 'undertow_health{run="run"}' in pages[0]
    with pytest.raises(OSError, match="refused"):  # and no longer after it
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)


def test_opentelemetry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from undertow.integrations.sinks import opentelemetry as sink

    logs, metrics = InMemoryLogRecordExporter(), InMemoryMetricReader()
    provider = LoggerProvider()
    provider.add_log_record_processor(SimpleLogRecordProcessor(logs))
    monkeypatch.setattr(sink, "get_logger", provider.get_logger)  # the global ones can be set only once
    monkeypatch.setattr(sink, "get_meter", MeterProvider([metrics]).get_meter)
    train(tmp_path / "run", "opentelemetry")
    records = [entry.log_record for entry in logs.get_finished_logs()]
    found = {(record.attributes or {})["undertow.code"]: record for record in records}
    assert found["NUM001"].severity_text == "critical"
    assert found["NUM001"].event_name == "undertow.finding"
    data: Any = metrics.get_metrics_data()
    gauges = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    assert gauges["undertow.step"].data.data_points[0].value == STEPS - 1
    assert gauges["undertow.health"].data.data_points[0].value == 3


def test_a_webhook_gets_findings_as_the_report_has_them(tmp_path: Path, address: Server) -> None:
    run, _ = train(tmp_path / "run", f"webhook:{address.address}")
    sent = {body["code"]: body for body in address.bodies}
    reported = {finding.code: finding for finding in run.diagnose().findings}
    assert sent.keys() == reported.keys()
    body, finding = sent["NUM001"], reported["NUM001"]
    assert body["run"] == "run"
    assert body["severity"] == "critical"
    assert body["first_step"] == finding.first_step
    assert body["summary"]
    assert body["remedies"][0]["how"]
    assert "/secret" not in (tmp_path / "run" / "run.json").read_text()


def test_slack_gets_blocks(tmp_path: Path, address: Server) -> None:
    train(tmp_path / "run", f"slack:{address.address}")
    first = address.bodies[0]
    assert [block["type"] for block in first["blocks"]] == ["header", "section", "context"]
    assert all(len(body["blocks"][1]["text"]["text"]) < 3000 for body in address.bodies)
    assert any("NUM001" in body["text"] for body in address.bodies)


def test_an_address_that_fails_is_left_out_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(status=500)
    run, _ = train(tmp_path / "run", f"webhook:{server.address}")
    server.close()
    lines = [line for line in capsys.readouterr().err.splitlines() if "sink" in line]
    assert len(lines) == 1
    assert "the sink webhook is left out (it answered 500 Internal Server Error twice)" in lines[0]
    assert "/secret" not in lines[0]
    assert len(server.bodies) == 2  # the same finding, twice, and nothing after
    assert run.diagnose().steps.recorded == STEPS


def test_an_address_that_hangs_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(feed, "PATIENCE", 0.2)
    hanging, kept = threading.Event(), Kept()
    server = Server(wait=hanging)
    run, _ = train(tmp_path / "run", f"webhook:{server.address}", kept)
    hanging.set()
    server.close()
    assert "the sink webhook did not end in time and is left behind" in capsys.readouterr().err
    assert len(kept.rows) == STEPS
    assert run.status == "finished"


@pytest.mark.parametrize("where", ["numbers", "finding", "close"])
def test_a_sink_that_raises_is_left_out(where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no such luck")

    broken, other = Kept(), Kept()
    setattr(broken, where, fail)
    run, _ = train(tmp_path / "run", broken, other)
    errors = capsys.readouterr().err
    assert errors.count("the sink Kept is left out (RuntimeError: no such luck); your training goes on") == 1
    assert len(other.rows) == STEPS
    assert run.status == "finished"


def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "undertow.integrations.sinks.prometheus", raising=False)
    train(tmp_path / "run", "prometheus:9", rate=0.01, steps=2)
    assert "prometheus-client is not installed. pip install prometheus-client" in capsys.readouterr().err


def test_what_is_no_sink_is_refused_before_the_training() -> None:
    for wrong in ("tensorbord", "webhook:ftp://x", "slack", "prometheus:99999", 5, ["wandb", "nothing"]):
        with pytest.raises(SettingError, match="tensorboard"):
            Settings.resolve(sinks=wrong)
    assert Settings.resolve(sinks="tensorboard:logs, wandb").sinks == ("tensorboard:logs", "wandb")
    assert Settings.resolve(sinks=["slack:https://a/secret"]).to_record()["sinks"] == ["slack"]


def test_weights_and_biases_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2 as records
    from wandb.sdk.internal.datastore import DataStore

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(feed, "PATIENCE", 60.0)  # it starts a program of its own
    train(tmp_path / "run", "wandb:project")
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    store, kept = DataStore(), []
    store.open_for_scan(str(file))
    while (data := store.scan_data()) is not None:
        kept.append(records.Record.FromString(data))
    rows = [
        {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item}
        for record in kept
        if record.HasField("history")
    ]
    assert [row["undertow/step"] for row in rows] == list(range(STEPS))
    assert sum(record.HasField("alert") for record in kept) > 1
    assert "NUM001 non-finite-gradient" in {record.alert.title for record in kept}
    assert {record.run.project for record in kept if record.HasField("run")} == {"project"}


def test_mlflow_in_a_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setattr(feed, "PATIENCE", 60.0)
    address = (tmp_path / "mlruns").as_uri()
    run, _ = train(tmp_path / "run", f"mlflow:{address}")
    client = mlflow.MlflowClient(address)
    (theirs,) = client.search_runs([client.get_experiment_by_name("undertow").experiment_id])
    assert theirs.info.status == "FINISHED"
    history = client.get_metric_history(theirs.info.run_id, "undertow/loss")
    assert sorted(metric.step for metric in history) == list(range(STEPS))
    assert "critical, step" in theirs.data.tags["undertow.NUM001"]
    assert run.status == "finished"


def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when it is imported
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    monkeypatch.setattr(feed, "PATIENCE", 60.0)
    train(tmp_path / "run", "trackio:project")
    rows = [row for row in SQLiteStorage.get_logs("project", "undertow run") if "undertow/loss" in row]
    assert [row["step"] for row in rows] == list(range(STEPS))
    assert any("NUM001" in alert["title"] for alert in SQLiteStorage.get_alerts("project"))
