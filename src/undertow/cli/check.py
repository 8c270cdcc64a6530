"""`undertow check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from undertow.cli.output import RUN_HELP, busy, run_argument
from undertow.schema.severity import Severity

if TYPE_CHECKING:
    from undertow.schema.findings import Diagnosis, Finding

FOUND, NOT_FINISHED = 1, 3


@click.command(
    help="Judge a finished run: exit code 0 when nothing at or above --fail-on was found, 1 when something was, "
    f"3 when the run is unreadable, unfinished or empty.\n\n{RUN_HELP}",
    epilog="Example:  undertow check latest --fail-on severe",
)
@run_argument
@click.option(
    "--fail-on",
    type=click.Choice([str(severity) for severity in Severity]),
    default=str(Severity.MODERATE),
    show_default=True,
    help="The least severity that fails.",
)
@click.option("--format", "kind", type=click.Choice(("text", "json")), default="text", show_default=True)
@click.pass_context
def command(ctx: click.Context, run: str, fail_on: str, kind: str) -> None:
    from undertow.run import open_run

    with busy("reading the run"):
        opened = open_run(run)
        diagnosis, status = opened.diagnose(), opened.status
    least = Severity(fail_on)
    failing = [finding for finding in diagnosis.findings if finding.severity.rank >= least.rank]
    unfinished = ""
    if status in ("running", "killed"):
        unfinished = f"the run is not finished ({status})"
    elif diagnosis.steps.recorded == 0:
        unfinished = "the run has no steps: " + "; ".join(diagnosis.coverage.reasons)
    code = NOT_FINISHED if unfinished else FOUND if failing else 0
    if kind == "json":
        _print_json(diagnosis, failing, status, fail_on, code)
    else:
        _print_text(diagnosis, failing, fail_on)
    if unfinished:
        click.echo(f"undertow: cannot judge {diagnosis.run}: {unfinished}.", err=True)
    ctx.exit(code)


def _print_text(diagnosis: Diagnosis, failing: list[Finding], fail_on: str) -> None:
    for finding in failing:
        where = finding.layers[0] if finding.layers else "-"
        click.echo(
            f"{diagnosis.run}: {finding.severity} {finding.code} {where} step {finding.first_step}: {finding.summary}"
        )
    number = "no finding" if not failing else f"{len(failing)} finding{'s' if len(failing) > 1 else ''}"
    click.echo(f"{diagnosis.run}: {number} at or above {fail_on} in {diagnosis.steps.recorded:,} steps")


def _print_json(diagnosis: Diagnosis, failing: list[Finding], status: str, fail_on: str, code: int) -> None:
    import msgspec

    record = {
        "run": diagnosis.run,
        "status": status,
        "health": diagnosis.health,
        "fail_on": fail_on,
        "exit_code": code,
        "findings": failing,
    }
    click.echo(msgspec.json.format(msgspec.json.encode(record), indent=2).decode())
