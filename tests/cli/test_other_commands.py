"""runs, export, check, explain, doctor."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.cli.conftest import write
from tests.detect.building import Training

from undertow.cli import COMMANDS, group
from undertow.detect.engine.registry import conditions
from undertow.errors import UndertowError
from undertow.schema import RunStatus


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(group, [str(argument) for argument in arguments])


def raised(result: Result) -> UndertowError:
    assert isinstance(result.exception, UndertowError), result.output
    return result.exception


@pytest.mark.parametrize(
    ("run", "arguments", "code"),
    [
        ("sick", (), 1),
        ("sick", ("--fail-on", "critical"), 1),
        ("healthy", (), 0),
        ("healthy", ("--fail-on", "info"), 0),
        ("unfinished", (), 3),
        ("empty", (), 3),
    ],
)
def test_check(run: str, arguments: tuple[str, ...], code: int, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(run)
    assert invoke("check", folder, *arguments).exit_code == code
    result = invoke("check", folder, *arguments, "--format", "json")
    assert result.exit_code == code
    record = json.loads(result.stdout)
    assert record["exit_code"] == code
    assert bool(record["findings"]) == (code == 1)
    result = invoke("check", folder, *arguments, "--format", "sarif")
    assert result.exit_code == code
    assert bool(json.loads(result.stdout)["runs"][0]["results"]) == (code == 1)


def test_check_ends_with_one_line_that_says_what_was_judged(sick: Path, healthy: Path) -> None:
    assert invoke("check", healthy).stdout == "example: no finding at or above moderate in 20 steps\n"
    assert invoke("check", healthy, "--fail-on", "mild").stdout == "example: no finding at or above mild in 20 steps\n"
    *found, last = invoke("check", sick).stdout.splitlines()
    assert last == f"example: {len(found)} findings at or above moderate in 12 steps"
    assert found[0].startswith("example: critical NUM001 second.weight step 7: ")
    *found, last = invoke("check", sick, "--fail-on", "critical").stdout.splitlines()
    assert all(" critical " in line for line in found)
    assert last == f"example: {len(found)} findings at or above critical in 12 steps"


def test_check_of_one_finding_does_not_say_findings(tmp_path: Path) -> None:
    training = Training().run(7).run(1, scalars={"loss": math.nan})
    *found, last = invoke("check", write(tmp_path / "one", training), "--fail-on", "critical").stdout.splitlines()
    assert len(found) == 1
    assert found[0].startswith("example: critical NUM002 - step 7: ")
    assert last == "example: 1 finding at or above critical in 8 steps"


def test_check_of_what_cannot_be_judged_says_only_that(empty: Path, healthy: Path, sick: Path) -> None:
    result = invoke("check", empty)
    assert result.stdout == ""
    assert result.stderr.startswith("undertow: cannot judge example: the run has no steps: ")
    for folder in (healthy, sick):
        (folder / "segments" / "activation-00000.arrows").write_bytes(b"rubbish!" * 100)
    result = invoke("check", healthy)
    assert (result.exit_code, result.stdout) == (3, "")
    assert "activation-00000.arrows is left out" in result.stderr
    assert invoke("check", sick).exit_code == 1  # what is left is enough


@pytest.mark.parametrize("columns", [24, 40, 60, 80, 120])
def test_runs_in_a_narrow_terminal(sick: Path, unfinished: Path, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    (sick.parent / "broken").mkdir()
    (sick.parent / "broken" / "run.json").write_text("{", encoding="utf-8")
    lines = invoke("runs").stdout.splitlines()
    assert max(map(len, lines)) <= columns
    titles = lines[0].split()
    assert titles[0] == "run"
    assert "status" in titles
    assert ("health" in titles) == (columns >= 40)
    assert ("finding" in titles) == (columns >= 60)
    assert ("steps" in titles) == (columns >= 80)
    assert ("begun" in titles) == (columns >= 120)
    assert {line.split()[0] for line in lines[1:4]} == {"sick", "unfinished", "broken"}
    assert any("unreadable" in line for line in lines[1:4])
    assert "broken:" in "\n".join(lines[5:])


def test_runs(sick: Path, healthy: Path) -> None:
    (sick.parent / "broken").mkdir()
    (sick.parent / "broken" / "run.json").write_text("{", encoding="utf-8")
    records = json.loads(invoke("runs", "--json").stdout)
    assert {record["name"] for record in records} == {"example", "broken"}
    assert {Path(record["folder"]).name for record in records} == {"sick", "healthy", "broken"}
    broken = next(record for record in records if record["name"] == "broken")
    assert broken["status"] == "unreadable"
    assert broken["problem"]
    verdicts = {Path(record["folder"]).name: (record["health"], record["cause"]) for record in records}
    assert verdicts["sick"] == ("critical", "NUM001 non-finite-gradient")
    assert verdicts["healthy"] == (None, None)  # nobody judged it when it was closed
    table = invoke("runs", sick.parent).stdout
    assert "healthy" in table
    assert "unreadable" in table
    assert "critical  NUM001 non-finite-gradient" in table


def test_runs_of_nothing(tmp_path: Path) -> None:
    result = invoke("runs")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "no runs" in result.stderr
    assert invoke("runs", "--json").stdout.strip() == "[]"
    assert raised(invoke("runs", tmp_path / "nowhere")).exit_code == 3


def test_export_csv_to_stdout(sick: Path) -> None:
    result = invoke("export", sick, "--to", "csv", "--layers", "first.*", "--quantity", "gradient_norm")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert result.exit_code == 0
    assert {row["layer"] for row in rows} == {"first.weight", "first.bias"}
    assert set(rows[0]) == {"step", "layer", "gradient_norm"}
    assert len(rows) == 24


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
def test_export_to_a_file(sick: Path, kind: str) -> None:
    result = invoke("export", sick, "--to", kind, "-o", f"out.{kind}")
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert Path(f"out.{kind}").stat().st_size > 0
    assert sorted(path.name for path in Path.cwd().glob("*out*")) == [f"out.{kind}"]


def test_export_refuses_what_is_not_there(sick: Path) -> None:
    assert raised(invoke("export", sick, "--to", "csv", "--layers", "fist.*")).code == "UT004"
    unknown = raised(invoke("export", sick, "--to", "csv", "--quantity", "grad_norm"))
    assert unknown.code == "UT004"
    assert "gradient_norm" in unknown.way_out
    assert len(unknown.way_out) < 200
    assert raised(invoke("export", sick, "--to", "csv", "-o", "no/such/folder/x.csv")).code == "UT003"
    assert invoke("export", sick, "--to", "svg").exit_code == 2


@pytest.mark.parametrize("code", sorted({one.code for one in conditions()}))
def test_a_page_in_brief_fits_a_screen(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    brief = invoke("explain", code).stdout.splitlines()
    assert len(brief) <= 40
    for title in ("What it sees", "Why it is bad", "When it is wrong", "What to do"):
        assert brief[brief.index(title) + 1].startswith("  • ")


def test_explain_one_condition_of_a_code() -> None:
    one = invoke("explain", "UPD003", "missing-from-optimizer").stdout
    assert "add_param_group" in one
    assert "frozen-midway" not in one
    assert "frozen-midway" in invoke("explain", "UPD003", "--full").stdout
    assert "stale-optimizer" in raised(invoke("explain", "UPD003", "stale")).way_out


def test_explain() -> None:
    page = invoke("explain", "NUM001", "--full").stdout
    for title in ("What it sees", "Why it is bad", "When it is wrong", "References", "What to do"):
        assert title in page
    assert "rank" in invoke("explain", "DST001").stdout
    assert "NUM001" in raised(invoke("explain", "NUM01")).way_out
    assert "GRD004" in raised(invoke("explain", "zero-gradients")).way_out
    listing = invoke("explain").stdout.splitlines()
    assert "NUM001  non-finite-gradient" in listing
    assert json.loads(invoke("explain", "UPD004", "--json").stdout)["code"] == "UPD004"


def test_doctor() -> None:
    result = invoke("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(result.stdout)}
    assert checks["python"]["fine"]
    assert checks["runs"]["fine"]
    assert result.exit_code == int(any(check["fine"] is False for check in checks.values()))
    assert invoke("doctor").stdout.count("\n") >= len(checks)


def doctor(name: str) -> tuple[int, dict[str, Any]]:
    result = invoke("doctor", "--json")
    return result.exit_code, next(check for check in json.loads(result.stdout) if check["name"] == name)


def test_doctor_on_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from undertow.measure import kernels

    _, native = doctor("kernel")
    assert (native["says"], native["fine"]) == ("native", True)
    monkeypatch.setattr(kernels, "choose", lambda _: SimpleNamespace(name="torch"))
    _, slow = doctor("kernel")
    assert slow["fine"] is None
    assert slow["says"] == "torch (no native kernel was built)"
    assert "reinstall" in slow["hint"]

    def broken(_: str) -> None:
        raise ImportError("undefined symbol")

    monkeypatch.setattr(kernels, "choose", broken)
    code, lost = doctor("kernel")
    assert (code, lost["fine"], lost["says"]) == (1, False, "cannot be loaded: undefined symbol")
    assert "Reinstall" in lost["hint"]


def test_doctor_on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    code, old = doctor("torch")
    assert (code, old["fine"]) == (1, False)
    assert old["says"].startswith("2.5.1+cpu, ")
    assert "2.6 or newer" in old["hint"]
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    code, gone = doctor("torch")
    assert (code, gone["fine"], gone["says"]) == (1, False, "not installed")
    assert doctor("tables")[1]["says"] == "pandas and pyarrow not installed"


def test_doctor_on_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=5e8))
    code, full = doctor("runs")
    assert (code, full["fine"]) == (1, False)
    assert "Less than 1 GB" in full["hint"]
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=5e9))
    assert doctor("runs")[1]["says"].endswith("(made when needed), 5 GB free")


def test_doctor_without_a_place_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    result = invoke("doctor", "--json")
    assert result.exit_code == 1
    assert any(check["name"] == "runs" and check["fine"] is False for check in json.loads(result.stdout))


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("demo", "run")])
def test_every_command_has_help_with_an_example(name: str) -> None:
    result = invoke(name, "--help")
    assert result.exit_code == 0
    assert "Example:" in result.stdout


@pytest.mark.parametrize("status", [RunStatus.FAILED, RunStatus.INTERRUPTED, RunStatus.DETACHED])
def test_check_does_not_pass_a_run_that_did_not_finish(tmp_path: Path, status: RunStatus) -> None:
    folder = write(tmp_path / "run", Training().run(40), status)
    result = invoke("check", folder)
    assert result.exit_code == 3
    assert f"not finished ({status}" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("report RUN --json --markdown", "exclude each other"),
        ("report RUN --json --html x.html", "exclude each other"),
        ("report RUN --markdown --html x.html", "exclude each other"),
        ("report RUN --sections flow,colours", "there is no 'colours'. There are: flow, dynamics, weights"),
        ("report RUN --sections flow --markdown", "goes with text and --json"),
        ("report RUN --sections flow --html x.html", "goes with text and --json"),
        ("compare RUN", "give at least two"),
        ("export RUN --to csv --fps 3", "--fps is for pictures"),
        ("export RUN --to json --still", "--still is for pictures"),
        ("export RUN --to html --layers *", "A report has all layers"),
        ("export RUN --to html --quantity gradient_norm", "A report has all layers"),
        ("export RUN --to png --quantity gradient_norm --quantity weight_norm", "give --quantity once"),
        ("export RUN --to png --size large", "'large' is no size"),
        ("export RUN --to png --steps 10-20", "'10-20' are no steps"),
        ("demo --fault none-such", "there is no fault 'none-such'. There are: "),
    ],
)
def test_options_that_do_not_go_together_are_refused_in_words(healthy: Path, arguments: str, words: str) -> None:
    result = invoke(*(str(healthy) if one == "RUN" else one for one in arguments.split()))
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
    assert result.stdout == ""
