"""The same against a server that speaks S3."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.store.small_runs import frame, new_writer

import undertow
from undertow.errors import UnreadableRunError, UnwritableRunError
from undertow.schema import RunStatus
from undertow.store.cloud.place import Place
from undertow.store.cloud.upload import Upload, send_run

pytest.importorskip("s3fs")
servers: Any = pytest.importorskip("moto.server")

SCRIPT = """
import torch, undertow
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
undertow.watch(model, run_dir="s3://bucket/unclosed", every=1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).square().mean().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    running = servers.ThreadedMotoServer(port=0)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def bucket(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": server,
        "UNDERTOW_SPOOL": str(tmp_path / "spool"),
        "UNDERTOW_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    system: Any = importlib.import_module("s3fs").S3FileSystem
    system.clear_instance_cache()  # they remember the settings of the first time
    system().mkdir("bucket")
    yield "s3://bucket"
    system().rm("bucket", recursive=True)
    system.clear_instance_cache()


def written(folder: Path, frames: int) -> None:
    writer = new_writer(folder)
    for number in range(frames):
        assert writer.append(frame(number, 3))
    writer.facts.status = RunStatus.FINISHED
    writer.close()


def test_a_run_goes_to_a_bucket_and_comes_back(bucket: str, tmp_path: Path) -> None:
    written(tmp_path / "run", 5)
    send_run(tmp_path / "run", f"{bucket}/a/run")
    here, there = undertow.open_run(tmp_path / "run"), undertow.open_run(f"{bucket}/a/run")
    np.testing.assert_array_equal(here.matrix("gradient_norm"), there.matrix("gradient_norm"))
    place = Place(f"{bucket}/a/run")
    place.remove("segments/gradient-00000.arrows")
    assert "segments/gradient-00000.arrows" not in place.files()
    send_run(tmp_path / "run", place.address)  # sends what was lost
    assert "segments/gradient-00000.arrows" in place.files()
    assert undertow.open_run(place.address).problems == []


def test_a_growing_run_is_replaced_by_its_newer_self(bucket: str, tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "run")
    upload = Upload(tmp_path / "run", Place(f"{bucket}/run"))
    for number in range(3):
        assert writer.append(frame(number, 3))
        upload.pass_over(last=True)
        assert len(undertow.open_run(f"{bucket}/run").steps) == number + 1
    writer.close()


def test_a_bucket_that_is_not_there_is_not_made(bucket: str, tmp_path: Path) -> None:
    written(tmp_path / "run", 1)
    with pytest.raises(UnwritableRunError, match="nosuchbucket"):
        send_run(tmp_path / "run", "s3://nosuchbucket/run")
    with pytest.raises(UnreadableRunError):
        undertow.open_run("s3://nosuchbucket/run")


def test_a_script_that_closes_nothing_is_uploaded_at_its_end(bucket: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "undertow report s3://bucket/unclosed" in done.stderr
    assert len(undertow.open_run(f"{bucket}/unclosed").steps) == 3
    assert not list((tmp_path / "spool").iterdir())  # nothing is left when all has arrived
