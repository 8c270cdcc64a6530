"""`undertow check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from undertow.cli.output import RUN_HELP, busy, run_argument
from undertow.schema import Severity

if TYPE_CHECKING:
    from undertow.schema.findings import Diagnosis, Finding

FOUND, CANNOT_JUDGE = 1, 3


@click.command(
    help="Judge a finished run: exit code 0 when nothing at or above --fail-on was found, 1 when something was, "
    f"3 when the run is unreadable, damaged, unfinished or empty.\n\n{RUN_HELP}",
    epilog="Example:  undertow check latest --fail-on severe\n\n"
    "For a code host:  undertow check latest --format sarif > undertow.sarif",
)
@run_argument
@click.option(
    "--fail-on",
    type=click.Choice([str(severity) for severity in Severity]),
    default=str(Severity.MODERATE),
    show_default=True,
    help="The least severity that fails.",
)
@click.option("--format", "kind", type=click.Choice(("text", "json", "sarif")), default="text", show_default=True)
@click.pass_context
def command(ctx: click.Context, run: str, fail_on: str, kind: str) -> None:
    from undertow.run import open_run

    with busy("reading the run"):
        opened = open_run(run)
        diagnosis, status, problems = opened.diagnose(), opened.status, opened.problems
    least = Severity(fail_on)
    failing = [finding for finding in diagnosis.findings if finding.severity.rank >= least.rank]
    unknown = ""
    if status in ("running", "killed"):
        unknown = f"the run is not finished ({status})"
    elif diagnosis.steps.recorded == 0:
        unknown = "the run has no steps: " + "; ".join(diagnosis.coverage.reasons)
    elif problems and not failing:
        unknown = "part of the run is lost: " + "; ".join(problems)
    code = CANNOT_JUDGE if unknown else FOUND if failing else 0
    if kind == "json":
        _print_json(diagnosis, failing, status, fail_on, code)
    elif kind == "sarif":
        _print_sarif(diagnosis, opened.facts.command)
    else:
        _print_findings(diagnosis, failing)
        if not unknown:
            _print_count(diagnosis, failing, fail_on)
    if unknown:
        click.echo(f"undertow: cannot judge {diagnosis.run}: {unknown}.", err=True)
    ctx.exit(code)


def _print_findings(diagnosis: Diagnosis, failing: list[Finding]) -> None:
    for finding in failing:
        where = finding.layers[0] if finding.layers else "-"
        click.echo(
            f"{diagnosis.run}: {finding.severity} {finding.code} {where} step {finding.first_step}: {finding.summary}"
        )


def _print_count(diagnosis: Diagnosis, failing: list[Finding], fail_on: str) -> None:
    number = "no finding" if not failing else f"{len(failing)} finding{'s' if len(failing) > 1 else ''}"
    click.echo(f"{diagnosis.run}: {number} at or above {fail_on} in {diagnosis.steps.recorded:,} steps")


def _print_json(diagnosis: Diagnosis, failing: list[Finding], status: str, fail_on: str, code: int) -> None:
    record = {
        "run": diagnosis.run,
        "status": status,
        "health": diagnosis.health,
        "fail_on": fail_on,
        "exit_code": code,
        "findings": failing,
    }
    _print_record(record)


def _print_sarif(diagnosis: Diagnosis, command: list[str]) -> None:
    """All findings, whatever fails: their level says which matter, and whoever reads the file chooses."""
    from undertow.show.report.sarif import to_sarif

    _print_record(to_sarif(diagnosis, diagnosis.findings, command))


def _print_record(record: dict[str, Any]) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(record), indent=2).decode())
