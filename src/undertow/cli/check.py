"""`undertow check`."""

import click

from undertow.cli.output import RUN_HELP, busy, print_json, run_argument, say
from undertow.schema import RunStatus, Severity

FOUND, CANNOT_JUDGE = 1, 3


@click.command(
    help="Judge a finished run: exit code 0 when nothing at or above --fail-on was found, 1 when something was, "
    f"3 when the run is unreadable, damaged, empty, or did not finish.\n\n{RUN_HELP}",
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
@click.option(
    "--format", "kind", type=click.Choice(("text", "json", "sarif", "junit")), default="text", show_default=True
)
@click.pass_context
def command(ctx: click.Context, run: str, fail_on: str, kind: str) -> None:
    from undertow.run import open_run

    with busy("reading the run"):
        opened = open_run(run)
        diagnosis, status, problems = opened.diagnose(), opened.status, opened.problems
    least = Severity(fail_on)
    failing = [finding for finding in diagnosis.findings if finding.severity.rank >= least.rank]
    unknown = ""
    if status in ("running", "killed") or (status != RunStatus.FINISHED and not failing):
        how = f": {diagnosis.message}" if diagnosis.message else ""
        unknown = f"the run is not finished ({status}{how})"
    elif diagnosis.steps.recorded == 0:
        unknown = "the run has no steps: " + "; ".join(diagnosis.coverage.reasons)
    elif problems and not failing:
        unknown = "part of the run is lost: " + "; ".join(problems)
    code = CANNOT_JUDGE if unknown else FOUND if failing else 0
    if kind == "json":
        print_json(
            {
                "run": diagnosis.run,
                "status": status,
                "health": diagnosis.health,
                "fail_on": fail_on,
                "exit_code": code,
                "findings": failing,
            }
        )
    elif kind == "sarif":
        from undertow.show.report.sarif import to_sarif

        # All findings, whatever fails: their level says which matter, and whoever reads the file chooses.
        print_json(to_sarif(diagnosis, diagnosis.findings, opened.facts.command))
    elif kind == "junit":
        from undertow.show.report.junit import to_junit

        say(to_junit(diagnosis, failing, unknown))
    else:
        for finding in failing:
            where = finding.layers[0] if finding.layers else "-"
            place = f"{finding.severity} {finding.code} {where} step {finding.first_step}"
            say(f"{diagnosis.run}: {place}: {finding.summary}")
        if not unknown:
            number = "no finding" if not failing else f"{len(failing)} finding{'s' if len(failing) > 1 else ''}"
            say(f"{diagnosis.run}: {number} at or above {fail_on} in {diagnosis.steps.recorded:,} steps")
    if unknown:
        say(f"undertow: cannot judge {diagnosis.run}: {unknown}.", err=True)
    ctx.exit(code)
