"""The file of a report: its size, its numbers, and the command that writes it."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from tests.cli.conftest import write
from tests.detect.building import Training

from undertow.cli import group
from undertow.run import open_run
from undertow.schema import Block, Frame, GraphNode, GraphSource, Layer, LayerGraph, LayerTable, RunFacts, RunStatus
from undertow.schema.quantities import STORED_HISTOGRAM_WIDTH, STREAMS
from undertow.show.html.report_file import write_report
from undertow.show.page.page import page
from undertow.show.page.pictures import Allowance
from undertow.show.page.snapshot import Extent, snapshot
from undertow.store.writer import RunWriter
from undertow.views.verdict import Verdict

MOST_BYTES = 5_000_000
STREAMED = ("gradient", "update", "weight")
LANDMARK = 16  # frames


def noisy_run(folder: Path, layers: int, steps: int, every: int = 1, sick_from: int | None = None) -> Path:
    """Pure noise in every quantity and distribution: nothing is harder to keep small. A chain of modules."""
    facts = RunFacts(undertow="0.1.0", name="noise")
    writer = RunWriter(folder, facts)
    modules = [f"blocks.{place // 10}.part{place % 10}" for place in range(layers)]
    table = LayerTable.of(
        Layer(f"{module}.weight", order=place, shape=(64, 64), group=module) for place, module in enumerate(modules)
    )
    nodes = tuple(GraphNode(place, module) for place, module in enumerate(modules))
    writer.set_layers(table, LayerGraph(nodes, tuple(itertools.pairwise(range(layers))), GraphSource.AUTOGRAD))
    random, ids = np.random.default_rng(0), np.arange(layers, dtype=np.int32)
    blocks: dict[str, Block] = {}
    for number in range(steps):
        for stream in STREAMED:
            names = STREAMS[stream].names
            noise = np.linspace(-5, 0, layers) + 0.3 * random.standard_normal((len(names), layers), np.float32)
            values = (10**noise).astype(np.float32)
            quiet = [
                place for place, name in enumerate(names) if name.endswith(("nonfinite_count", "state", "optimizer"))
            ]
            values[quiet] = 0
            if stream == "gradient" and sick_from is not None and number >= sick_from:
                values[names.index("gradient_nonfinite_count"), ::3] = 7
                values[names.index("gradient_norm"), ::3] = np.nan
            blocks[stream] = Block(stream, ids, values)
        blocks.pop("histogram", None)
        if number % LANDMARK == 0:
            blocks["histogram"] = Block("histogram", ids, _distributions(random, layers))
        assert writer.append(Frame(number, number * every, float(number), {"loss": 1.0}, dict(blocks)))
    facts.status = RunStatus.FINISHED
    writer.write_facts()
    writer.close()
    return folder


def _distributions(random: np.random.Generator, layers: int) -> NDArray[np.float32]:
    """Of gradients and weights: bells of noisy shares over about twenty powers of two."""
    shares = np.exp(-((np.arange(STORED_HISTOGRAM_WIDTH - 1) - 20) ** 2) / 18) * random.random(
        (2, layers, STORED_HISTOGRAM_WIDTH - 1)
    )
    shares[shares < 1e-4] = 0
    lowest = random.integers(-40, -30, (2, layers, 1))
    stored = np.concatenate([lowest, shares / shares.sum(axis=2, keepdims=True)], axis=2)
    return stored.reshape(2, -1).astype(np.float32)


def carried(file: Path) -> tuple[dict[str, Any], list[bytes]]:
    """What is in a file: the document, and the pictures unpacked."""
    text = file.read_text(encoding="utf-8").split('id="data">')[1].split("<")[0]
    data = base64.b64decode(text)
    (count,) = struct.unpack_from("<I", data)
    lengths = struct.unpack_from(f"<{count}I", data, 4)
    ends = 4 * (1 + count) + np.cumsum((0, *lengths))
    parts = [gzip.decompress(data[start:end]) for start, end in itertools.pairwise(ends)]
    return json.loads(parts[0]), parts[1:]


@pytest.mark.slow
def test_a_thousand_sick_layers_over_two_thousand_steps_stay_below_five_megabytes(tmp_path: Path) -> None:
    run = open_run(noisy_run(tmp_path / "run", 1000, 2000, sick_from=1500))
    size = write_report(run, tmp_path / "report.html")
    assert size == (tmp_path / "report.html").stat().st_size <= MOST_BYTES
    document, parts = carried(tmp_path / "report.html")
    first = document["pictures"][0]
    assert (first["quantity"], first["rows"], first["columns"], first["level"]) == ("gradient_norm", 1000, 2000, 0)
    assert [one["code"] for one in document["diagnosis"]["findings"]].index("NUM001") == 0
    assert [len(one["layers"]) for one in document["densities"]] == [1000]
    assert len(parts) == len(document["pictures"]) + len(document["densities"]) >= 4


def test_all_parts_together_keep_to_the_allowance(tmp_path: Path) -> None:
    """The same at a tenth of the layers and steps, and of the bytes."""
    run = open_run(noisy_run(tmp_path / "run", 100, 200, sick_from=150))
    verdict = Verdict(run.diagnose(), from_journal=False)
    allowance = Allowance(everything=120_000, others=60_000, densities=30_000)
    data = snapshot(run, verdict, Extent(allowance=allowance))
    assert 0.7 * allowance.everything < len(data) <= allowance.everything
    file = tmp_path / "page.html"
    file.write_text(page(verdict.diagnosis, data), encoding="utf-8")
    document, parts = carried(file)
    assert document["pictures"][0]["columns"] == 200
    assert document["times"] == {"steps": list(range(200)), "times": [float(step) for step in range(200)]}
    assert document["densities"]
    assert len(parts) == len(document["pictures"]) + len(document["densities"])
    everything = Allowance().everything * 4 / 3 + len(page(verdict.diagnosis)) + 100_000  # for more and longer findings
    assert everything <= MOST_BYTES


def test_a_wide_run_is_carried_within_its_allowance_and_a_long_one_in_fewer_columns(tmp_path: Path) -> None:
    run = open_run(noisy_run(tmp_path / "run", 60, 300, every=50))
    write_report(run, tmp_path / "report.html")
    document, pictures = carried(tmp_path / "report.html")
    assert document["diagnosis"]["from_journal"] is False
    first = document["pictures"][0]
    assert first["level"] == 3  # 15,000 steps in at most 2,048 columns
    assert first["columns"] == -(-(299 * 50 + 1) // 8)
    names = [one["quantity"] for one in document["pictures"]]
    assert names[:4] == ["gradient_norm", "update_ratio", "gradient_cosine", "weight_norm"]
    assert [one["name"] for one in document["run"]["quantities"]] == [
        name for name in run.quantities if name in names
    ]  # no other is offered
    for one, data in zip(document["pictures"], pictures, strict=False):  # then come the distributions
        assert len(data) == one["rows"] * (8 + one["columns"])


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", Training().run(20))
    for name in ("one.html", "two.html"):
        write_report(open_run(folder), tmp_path / name)
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


def test_the_command_writes_the_file_and_replaces_an_old_one(tmp_path: Path) -> None:
    folder, file = write(tmp_path / "run", Training().run(5)), tmp_path / "report.html"
    file.write_text("old", encoding="utf-8")
    done = CliRunner().invoke(group, ["report", str(folder), "--html", str(file)])
    assert done.exit_code == 0, done.output
    assert done.stdout == ""
    assert f"wrote {file} (" in done.stderr
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_one_form_at_a_time_and_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", Training().run(5))
    both = CliRunner().invoke(group, ["report", str(folder), "--html", "x.html", "--json"])
    assert both.exit_code == 2
    assert "exclude each other" in both.output
    nowhere = CliRunner().invoke(group, ["report", str(folder), "--html", str(tmp_path / "no" / "x.html")])
    assert "cannot be written" in str(nowhere.exception)


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    name = "</script><script>alert(1)</script><!--"
    folder = write(tmp_path / "run", Training(name, "\u202ereversed").run(5), name=name)
    write_report(open_run(folder), tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "alert(1)" not in text.replace("&lt;script&gt;alert(1)", "")
    assert text.count("<script") == text.count("</script") == 2
