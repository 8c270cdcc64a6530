"""The diagnosis for an agent: at most 4 kB, whatever the run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.show.report.test_report_text import found, judged

from undertow.cli import group
from undertow.cli.output import print_json
from undertow.schema import Evidence
from undertow.schema.codes import CODES
from undertow.show.report.brief import MOST_BYTES, in_brief


def run(command: str = "train.py", folder: str = "runs/a", loss: tuple[float, ...] = (2.0, 1.0)) -> Any:
    values = {"loss": np.array(loss), "lr": np.array([0.1] * len(loss))}
    return SimpleNamespace(
        folder=Path(folder),
        facts=SimpleNamespace(command=command.split(" ")),
        scalar_names=list(values),
        scalars=values.__getitem__,
    )


@settings(max_examples=60, deadline=None)
@given(
    codes=st.lists(st.sampled_from(sorted(CODES)), max_size=52, unique=True),
    layer=st.text(st.characters(codec="utf-8"), min_size=1, max_size=3000),
    summary=st.text(st.characters(codec="utf-8"), max_size=2000),
    folder=st.text(st.characters(exclude_characters="\x00/"), min_size=1, max_size=900),
    count=st.integers(0, 400),
)
def test_it_is_never_longer_than_4_kb(codes: list[str], layer: str, summary: str, folder: str, count: int) -> None:
    evidence = (Evidence("gradient_norm", layer, 1.0, None, summary),) * 3
    findings = [found(code, evidence=evidence, layers=(layer,) * count, summary=summary) for code in codes]
    diagnosis = replace(judged(*findings), message=summary * 3)
    captured = CliRunner().invoke(_printing(in_brief(diagnosis, run(summary, folder))))
    document = json.loads(captured.stdout)
    assert len(captured.stdout.encode()) <= MOST_BYTES + 1  # and the end of the line
    assert (document["cause"] is None) == (not diagnosis.findings)
    assert document["also"]["count"] == max(0, len(diagnosis.findings) - 1)


def _printing(record: dict[str, Any]) -> Any:
    import click

    return click.command()(lambda: print_json(record))


def test_what_it_says_of_a_cause() -> None:
    evidence = (Evidence("gradient_norm", "first", 1e-9, 3e-4, "beside the other layers"),)
    diagnosis = judged(found("GRD003", variant="graph-cut", evidence=evidence), found("OPT005", severity="mild"))
    record = in_brief(diagnosis, run(loss=(2.0, float("nan"), 0.5)))
    first = diagnosis.findings[0]
    assert (record["cause"]["code"], record["cause"]["variant"]) == (first.code, first.variant)
    assert record["cause"]["layers"] == {"count": 5, "first": list(first.layers[:3])}
    assert record["cause"]["remedy"]["what"] == first.remedies[0].what
    assert record["loss"] == {"first": 2.0, "last": 0.5, "least": 0.5, "most": 2.0}
    assert record["more"][1] == "undertow explain GRD003 graph-cut"


def test_healthy_and_empty_runs() -> None:
    record = in_brief(judged(), run(loss=()))
    assert record["cause"] is None
    assert record["loss"] is None
    assert record["more"] == ["undertow report runs/a --json"]


def test_it_goes_with_json_alone(tmp_path: Path) -> None:
    for others in (["--brief"], ["--brief", "--json", "--details"], ["--brief", "--json", "--sections", "flow"]):
        result = CliRunner().invoke(group, ["report", str(tmp_path), *others], standalone_mode=True)
        assert result.exit_code == 2
        assert "--brief goes with --json" in result.output
