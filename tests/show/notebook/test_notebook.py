"""Notebooks are run as people run them: with a kernel, with and without anywidget."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import write
from tests.detect.building import Training

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

WIDGET = "application/vnd.jupyter.widget-view+json"
WITHOUT = "import sys\nsys.modules['anywidget'] = None"
TRAINING = """
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD([*model.parameters()][:2], lr=0.01)
w = undertow.watch(model, optimizer, run_dir="watched", every=1, quiet=True)
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        (model(torch.ones(2, 4)) - 1).square().mean().backward()
        optimizer.step()
"""
# Nothing is told before a second has passed: the thread that tells takes little of the time.
WAIT = """
import time
for _ in range(40):
    time.sleep(0.5)
    if not any(thread.name == "undertow-notebook" for thread in __import__("threading").enumerate()):
        break
"""


class Notebook:
    """What each cell gave, and what widgets were told."""

    def __init__(self, folder: Path, *cells: str) -> None:
        made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        self._client = nbclient.NotebookClient(
            made, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
        )
        self._client.execute()
        self._cells = made.cells

    def shown(self, cell: int) -> dict[str, Any]:
        """The result of a cell by kind."""
        results = [one for one in self._cells[cell].outputs if one.output_type in ("execute_result", "display_data")]
        assert len(results) == 1, self._cells[cell].outputs
        return results[0].data

    def told(self, cell: int) -> list[dict[str, Any]]:
        """The runs that the widget of a cell was sent last."""
        model = self.shown(cell)[WIDGET]["model_id"]
        found = [buffer["data"] for buffer in self._client.widget_buffers[model].values() if buffer["path"] == ["news"]]
        return [_unpacked(data) for data in found]


def _unpacked(text: str) -> dict[str, Any]:
    import base64

    data = base64.b64decode(text)
    count, length = struct.unpack_from("<2I", data)
    begin = 4 * (1 + count)
    return json.loads(gzip.decompress(data[begin : begin + length]))


def test_runs_and_their_views_show_themselves(tmp_path: Path) -> None:
    hit = {"first": 3.0}
    write(tmp_path / "sick", Training().run(30).run(10, gradient_nonfinite_count=hit), name="<b>sick</b>")
    notebook = Notebook(
        tmp_path,
        WITHOUT,
        "import undertow\nrun = undertow.open_run('sick')\nrun",
        *(f"run.{view}()" for view in ("diagnose", "flow", "dynamics", "weights")),
        "undertow.open_run('sick').folder.rename('gone')\nrun",
    )
    run = notebook.shown(1)
    assert set(run) == {"text/html", "text/plain"}
    for words in ("critical", "NUM001", "not finite", "data:image/png;base64,", "&lt;b&gt;sick&lt;/b&gt;"):
        assert words in run["text/html"]
    assert "<b>sick" not in run["text/html"]
    assert "<script" not in run["text/html"]
    assert run["text/plain"].startswith("<Run '<b>sick</b>': finished")
    for cell, words in ((2, "NUM001"), (3, "gain from loss to input"), (4, "stability"), (5, "parameters")):
        assert words in notebook.shown(cell)["text/html"], words
    assert set(notebook.shown(6)) >= {"text/plain"}  # what cannot be read any more still has its text


def test_a_training_that_is_watched_gives_its_live_verdict(tmp_path: Path) -> None:
    pytest.importorskip("anywidget")
    notebook = Notebook(
        tmp_path,
        "import undertow",
        TRAINING,
        "w",
        "train(40)",
        "w.run",
        "w.close()",
        WAIT,
        "undertow.open_run('watched')",
    )
    begun, running, finished = (notebook.shown(cell) for cell in (2, 4, 7))
    assert "no verdict" in begun["text/html"]
    assert begun["text/plain"].startswith("<undertow.Watch")
    assert "UPD003" in running["text/html"]  # half of the parameters are in no optimizer
    for shown in (begun, running, finished):
        assert {WIDGET, "text/html", "text/plain"} == set(shown)
    (told,) = notebook.told(2)  # shown before the first step, it was told of the last one
    assert told["run"]["status"] == "finished"
    assert told["run"]["steps"]["recorded"] == 40
    assert "UPD003" in [finding["code"] for finding in told["diagnosis"]["findings"]]
    assert told["pictures"][0]["quantity"] == "gradient_norm"
