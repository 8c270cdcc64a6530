"""`undertow report`."""

from __future__ import annotations

import click

from undertow.cli.output import RUN_HELP, busy, run_argument, show


@click.command(
    help=f"The diagnosis of a run: what is wrong, where, why, and what to change.\n\n{RUN_HELP}",
    epilog="Example:  undertow report latest --json | python -m json.tool",
)
@run_argument
@click.option("--json", "as_json", is_flag=True, help="The whole diagnosis as JSON.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Markdown, for an issue or a pull request.")
@click.option("--details", is_flag=True, help="All findings with their evidence and remedies.")
def command(run: str, as_json: bool, as_markdown: bool, details: bool) -> None:
    if as_json and as_markdown:
        raise click.UsageError("--json and --markdown exclude each other: choose one.")
    from undertow.run import open_run

    with busy("reading the run"):
        opened = open_run(run)
        diagnosis = opened.diagnose()
        tensors = [layer.path for layer in opened.layers.parameters]
    if as_json:
        from undertow.show.report.document import to_json

        click.echo(to_json(diagnosis))
    elif as_markdown:
        from undertow.show.report.markdown import to_markdown

        click.echo(to_markdown(diagnosis, tensors), nl=False)
    else:
        from undertow.show.report.text import report

        show(report(diagnosis, tensors=tensors, details=details))
