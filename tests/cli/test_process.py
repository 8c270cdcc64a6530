"""The program as a process: exit codes, one-line errors, clean stdout, no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def undertow(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "undertow", *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=60, env={**os.environ, **environment},
    )  # fmt: skip


def test_version() -> None:
    from undertow import __version__

    done = undertow("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert __version__ in done.stdout


def test_exit_codes_and_streams(sick: Path) -> None:
    done = undertow("report", sick, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["health"] == "critical"
    assert undertow("check", sick).returncode == 1
    assert undertow("check", sick, "--fail-on", "unbearable").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("report", "nowhere"), 3, "'nowhere'"),
        (("report", "pyproject.toml"), 3, "pyproject.toml"),
        (("report", "."), 3, "run.json"),
        (("reprot", "x"), 2, "'report'"),
        (("report",), 2, "RUN"),
        (("report", "x", "--jsn"), 2, "--json"),
        (("explain", "XYZ9"), 2, "'XYZ9'"),
        (("export", "x", "--to", "tiff"), 2, "'tiff'"),
        (("demo", "--fault", "nope"), 2, ". Try: undertow demo --help"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], code: int, word: str) -> None:
    done = undertow(*arguments)
    assert done.returncode == code
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("undertow: error UT")
    assert word in done.stderr


def test_a_newer_format_is_refused(sick: Path) -> None:
    file = sick / "run.json"
    facts = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**facts, "format": 999}), encoding="utf-8")
    done = undertow("report", sick)
    assert done.returncode == 3
    assert "999" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_bad_variable_is_one_line() -> None:
    done = undertow("report", "latest", UNDERTOW_EVERY="-3")
    assert done.returncode == 2
    assert "UNDERTOW_EVERY is '-3'" in done.stderr


def test_a_closed_pipe_is_quiet(sick: Path) -> None:
    command = f"{sys.executable} -m undertow export {sick} --to csv | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.startswith("step,layer,")
    assert done.stderr == ""


@pytest.mark.parametrize("arguments", [("export", "--to", "csv"), ("export", "--to", "json"), ("report", "--json")])
def test_a_reader_that_has_gone_is_no_error(sick: Path, arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "undertow", arguments[0], str(sick), *arguments[1:]]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_poor_terminal_is_served(sick: Path) -> None:
    done = undertow("report", sick, PYTHONIOENCODING="ascii", COLUMNS="40", LC_ALL="C")
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 40
    assert "NUM001" in done.stdout


def test_colour_only_when_asked_for(sick: Path) -> None:
    assert "\x1b" not in undertow("report", sick).stdout


def test_reading_needs_no_torch(sick: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from undertow.cli import main\n"
        f"sys.exit(main(['report', {str(sick)!r}, '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_group_imports_no_command(tmp_path: Path) -> None:
    program = (
        "import sys; from undertow.cli import main\n"
        "assert main(['--help']) == 0\n"
        "heavy = {'rich', 'numpy', 'torch', 'msgspec', 'undertow.store.reader', 'undertow.run'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
