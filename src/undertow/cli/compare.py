"""`undertow compare`."""

import click

from undertow.cli.output import RUN_HELP, busy, print_json, show


@click.command(
    help="Where runs diverge: the first step and layer at which their gradients differ, what differs in their "
    "configuration, and their curves over the same steps. Every other run is compared with the first one.\n\n"
    f"{RUN_HELP}",
    epilog="Example:  undertow compare baseline latest",
)
@click.argument("runs", metavar="RUN RUN…", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON: each layer, each curve.")
@click.option("--all", "all_layers", is_flag=True, help="Every layer that differs, and every curve.")
def command(runs: tuple[str, ...], as_json: bool, all_layers: bool) -> None:
    if len(runs) < 2:
        raise click.UsageError("A comparison needs two runs: give at least two.")
    from undertow.show.report.comparison_report import comparison_record, comparison_report
    from undertow.views.run_comparison import compare

    with busy(f"comparing {len(runs)} runs"):
        comparison = compare(*runs)
    if as_json:
        print_json(comparison_record(comparison))
    else:
        show(comparison_report(comparison, all_layers=all_layers))
