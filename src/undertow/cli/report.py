"""`undertow report`."""

from pathlib import Path

import click

from undertow.cli.output import RUN_HELP, busy, print_json, run_argument, say, show

SECTION_NAMES = ("flow", "dynamics", "weights")


@click.command(
    help=f"The diagnosis of a run: what is wrong, where, why, and what to change.\n\n{RUN_HELP}",
    epilog="Example:  undertow report latest --json | python -m json.tool",
)
@run_argument
@click.option("--json", "as_json", is_flag=True, help="The whole diagnosis as JSON.")
@click.option("--brief", is_flag=True, help="With --json: at most 4 kB, whatever the run; for agents and chats.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Markdown, for an issue or a pull request.")
@click.option(
    "--html", "html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="One file for a browser."
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(("text", "json", "markdown", "github", "sarif")),
    help="github: annotations of a workflow; sarif: for code hosts and editors. Both point at lines.",
)
@click.option("--details", is_flag=True, help="All findings with their evidence and remedies.")
@click.option("--sections", metavar="NAMES", default="", help="Also flow, dynamics, weights: some of them, by commas.")
def command(
    run: str, as_json: bool, brief: bool, as_markdown: bool, html: Path | None, kind: str | None, details: bool,
    sections: str,
) -> None:  # fmt: skip
    if as_json + as_markdown + (html is not None) + (kind is not None) > 1:
        raise click.UsageError("--json, --markdown, --html and --format exclude each other: choose one.")
    if brief and (not as_json or details or sections):
        raise click.UsageError("--brief goes with --json alone.")
    as_json, as_markdown = as_json or kind == "json", as_markdown or kind == "markdown"
    wanted = [name.strip() for name in sections.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in SECTION_NAMES]
    if unknown:
        raise click.UsageError(f"--sections: there is no {unknown[0]!r}. There are: {', '.join(SECTION_NAMES)}.")
    if wanted and (as_markdown or html or kind in ("github", "sarif")):
        raise click.UsageError("--sections goes with text and --json, not with --markdown, --html, github or sarif.")
    from undertow.run import open_run

    if html is not None:
        from undertow.show.html.report_file import write_report

        with busy("reading the run") as tell:
            size = write_report(open_run(run), html, tell)
        say(f"wrote {html} ({size / 1e6:.1f} MB)", err=True)
        return
    with busy("reading the run"):
        opened = open_run(run)
        diagnosis = opened.diagnose()
        tensors = [layer.path for layer in opened.layers.parameters]
    if brief:
        from undertow.show.report.brief import in_brief

        print_json(in_brief(diagnosis, opened))
    elif as_json:
        from undertow.show.report.sections import report_record

        with busy("analysing the run"):
            record = report_record(diagnosis, opened, details=wanted)
        print_json(record)
    elif kind == "sarif":
        from undertow.show.report.sarif import to_sarif

        print_json(to_sarif(diagnosis, diagnosis.findings, opened.facts.command))
    elif kind == "github":
        from undertow.show.report.annotations import to_annotations

        say(to_annotations(diagnosis), end="")
    elif as_markdown:
        from undertow.show.report.markdown import to_markdown

        say(to_markdown(diagnosis, tensors), end="")
    else:
        from undertow.show.report.text import report

        show(report(diagnosis, tensors=tensors, details=details))
        if wanted:
            from undertow.show.report.sections import sections_report

            with busy("analysing the run"):
                parts = sections_report(opened, wanted)
            show(parts)
