"""What the commands print about the same runs, to the letter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.golden import assert_as_before
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
    "export.json": ("export", "sick", "--to", "json", "--layers", "head.*"),
    "play.txt": ("play", "varied", "--once", "--colours", "none"),
    "play_worst.txt": ("play", "sick", "--once", "--colours", "16", "--palette", "colour-blind"),
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
    "runs.txt": ("runs",),
    "runs.json": ("runs", "--json"),
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.usefixtures("sick", "healthy", "empty")
def test_golden(name: str, tmp_path: Path) -> None:
    varied_run(tmp_path / "runs" / "varied")
    varied_run(tmp_path / "runs" / "other", seed=1)
    result = CliRunner().invoke(group, COMMANDS[name], catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (1 if name.startswith("check") else 0, ""), result.output
    assert_as_before(GOLDEN / name, _without_time_and_place(result.stdout, tmp_path))


def _without_time_and_place(text: str, folder: Path) -> str:
    text = text.replace(str(folder), "HERE")
    text = re.sub(r'("(?:created|ended|time)": ?)[\d.e+]+', r"\g<1>0", text)
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "DAY AND TIME", text)
