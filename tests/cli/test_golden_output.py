"""What the commands print about the same runs, to the letter."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tests.golden import assert_as_before, text_of
from tests.varied import varied_run

from undertow.cli import group

GOLDEN = Path(__file__).parent / "golden"
COMMANDS = {
    "report_sick.txt": ("report", "sick"),
    "report_sick_details.txt": ("report", "sick", "--details"),
    "report_sick.md": ("report", "sick", "--markdown"),
    "report_sick.json": ("report", "sick", "--json"),
    "report_healthy.txt": ("report", "healthy"),
    "report_empty.txt": ("report", "empty"),
    "report_varied_details.txt": ("report", "varied", "--details"),
    "check_sick.json": ("check", "sick", "--format", "json"),
    "check_sick.sarif": ("check", "sick", "--format", "sarif"),
    "check_varied.txt": ("check", "varied", "--fail-on", "info"),
    "compare.txt": ("compare", "varied", "other", "sick"),
    "compare_all.txt": ("compare", "varied", "other", "--all"),
    "compare.json": ("compare", "sick", "healthy", "--json"),
    "explain.txt": ("explain",),
    "explain.json": ("explain", "--json"),
    "export.csv": ("export", "varied", "--to", "csv", "--layers", "head.*", "--quantity", "gradient_norm"),
    "export.json": ("export", "sick", "--to", "json", "--layers", "head.*", "--quantity", "gradient_norm"),
    "play.txt": ("play", "varied", "--once", "--colours", "none"),
    "play_worst.txt": ("play", "sick", "--once", "--colours", "16", "--palette", "colour-blind"),
    "play_grey.txt": ("play", "varied", "--once", "--colours", "16", "--palette", "monochrome"),
    "play_shades.txt": ("play", "varied", "--once", "--colours", "256", "--quantity", "weight_drift"),
    "play_until_it_ends.txt": (
        "play",
        "varied",
        "--colours",
        "none",
        "--layers",
        "blocks.*",
        "--quantity",
        "update_ratio",
    ),
    "report_sections.txt": ("report", "varied", "--sections", "flow,dynamics,weights"),
    "report_sections.json": ("report", "varied", "--sections", "flow,dynamics,weights", "--json"),
    "runs.txt": ("runs",),
    "runs.json": ("runs", "--json"),
    "weights.txt": ("weights", "after.safetensors"),
    "weights_all.txt": ("weights", "after.safetensors", "--all"),
    "weights_against.txt": ("weights", "after.safetensors", "--against", "before.safetensors"),
    "weights_against.json": ("weights", "after.safetensors", "--against", "before.safetensors", "--json"),
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.usefixtures("sick", "healthy", "empty")
def test_golden(name: str, tmp_path: Path) -> None:
    if name.startswith("weights"):
        write_checkpoints(tmp_path)
    varied_run(tmp_path / "runs" / "varied")
    varied_run(tmp_path / "runs" / "other", seed=1)
    result = CliRunner().invoke(group, COMMANDS[name], catch_exceptions=False, color=True)
    assert (result.exit_code, result.stderr) == (1 if name.startswith("check") else 0, ""), result.output
    text = _without_time_and_place(result.stdout, tmp_path)
    assert_as_before(GOLDEN / name, text_of(json.loads(text)) if name.endswith(".json") else text)


def write_checkpoints(folder: Path) -> None:
    """A network whose layers were moved by very different amounts; one holds NaN, one is dead, one has an outlier."""
    save_file = pytest.importorskip("safetensors.numpy").save_file
    chance = np.random.default_rng(7)
    before = {f"layers.{place}.weight": chance.normal(0, 0.2, (24, 24)).astype(np.float32) for place in range(6)}
    before["layers.0.bias"] = np.zeros(24, np.float32)
    save_file(before, folder / "before.safetensors")
    after = {path: value + 0.01 * place * np.ones_like(value) for place, (path, value) in enumerate(before.items())}
    after["layers.2.weight"][0, 0], after["layers.3.weight"][1, 2] = np.nan, 90.0
    after["layers.4.weight"][:] = 0.0
    save_file(after, folder / "after.safetensors")


def _without_time_and_place(text: str, folder: Path) -> str:
    text = text.replace(str(folder), "HERE")
    text = re.sub(r'("(?:created|ended|time|process)": ?)[\d.e+]+', r"\g<1>0", text)
    text = re.sub(r'("host": ?)"[^"]*"', r'\g<1>"HOST"', text)
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "DAY AND TIME", text)
