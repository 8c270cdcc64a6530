"""A dashboard in this process, over runs written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.cli.conftest import write
from tests.detect.building import Training

from undertow.show.web.app import build_app

TOKEN = "a-token-of-the-tests"
ADDRESS = "http://127.0.0.1:7007"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    hit = {"first": 3.0, "second": 5.0}
    sick = Training().run(7).run(5, gradient_nonfinite_count=hit, gradient_norm=dict.fromkeys(hit, float("nan")))
    write(tmp_path / "runs" / "sick", sick, name="sick one")
    write(tmp_path / "runs" / "inner" / "healthy", Training().run(20))
    return tmp_path / "runs"


@pytest.fixture
def stranger(root: Path) -> Iterator[TestClient]:
    """Somebody without the token."""
    with TestClient(build_app(root, TOKEN), base_url=ADDRESS, follow_redirects=False) as client:
        yield client


@pytest.fixture
def client(stranger: TestClient) -> TestClient:
    assert stranger.get("/", params={"token": TOKEN}).status_code == 303
    return stranger
