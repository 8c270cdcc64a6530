"""Every document that the dashboard is given of the same run, to the letter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.golden import assert_as_before, text_of
from tests.show.web.conftest import ADDRESS, TOKEN
from tests.varied import varied_run

from undertow.show.web.app import build_app

GOLDEN = Path(__file__).parent / "golden"
SPAN = {"first": 3, "last": 40, "columns": 8}
NORM = {"quantity": "gradient_norm"}
QUESTIONS: dict[str, dict[str, str | int]] = {
    "runs": {}, "divergence": {"other": "other"}, "run": {}, "times": {}, "diagnosis": {}, "flow": {},
    "weights": {}, "scale": {**NORM}, "usual": {**NORM}, "scalar": {"name": "loss", **SPAN},
    "line": {"layer": 2, **NORM, **SPAN}, "density": {"stream": "gradient", "layer": 2, **SPAN},
}  # fmt: skip


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    root = tmp_path_factory.mktemp("served") / "runs"
    varied_run(root / "varied")
    varied_run(root / "other", seed=1)
    client = TestClient(build_app(root, TOKEN), base_url=ADDRESS)
    client.get("/", params={"token": TOKEN})
    return client


@pytest.mark.parametrize("name", QUESTIONS)
def test_document(client: TestClient, name: str) -> None:
    answer = client.get(f"/api/{name}", params={"run": "varied", **QUESTIONS[name]})
    assert answer.status_code == 200, answer.text
    document = answer.json()
    if name == "runs":
        document["root"] = "HERE"
    assert_as_before(GOLDEN / f"{name}.json", text_of(document))


@pytest.mark.parametrize(("level", "statistic"), [(0, "maximum"), (2, "maximum"), (2, "mean"), (4, "minimum")])
def test_tile(client: TestClient, level: int, statistic: str) -> None:
    asked = {"run": "varied", "level": level, "index": 0, "statistic": statistic, **NORM}
    answer = client.get("/api/tile", params=asked)
    codes = np.frombuffer(answer.content, "<u2").reshape(12, -1)
    used = codes[:, : (47 >> level) + 1]
    # The low bits of a shade hang on the last digit of a logarithm.
    document = {
        "last": answer.headers["undertow-last-step"],
        "codes": (used >> 6).tolist(),
        "unused": len(np.unique(codes[:, used.shape[1] :])),
    }
    assert_as_before(GOLDEN / f"tile_{level}_{statistic}.json", text_of(document))
