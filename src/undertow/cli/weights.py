"""`undertow weights`."""

import click

from undertow.cli.output import bar, print_json, show


@click.command(
    help="""The health of the weights in a checkpoint, and how far they moved from another. No model class needed.

    CHECKPOINT is a .safetensors file, a file of torch.save, an index of shards, or the folder of a sharded or
    distributed checkpoint. Nothing that is pickled is ever run. Under torchrun the tensors are shared out among the
    processes, and the first one prints the report: torchrun --nproc-per-node 8 -m undertow weights CHECKPOINT.""",
    epilog="Example:  undertow weights step-2000.safetensors --against step-1000.safetensors",
)
@click.argument("checkpoint", metavar="CHECKPOINT")
@click.option("--against", metavar="CHECKPOINT", help="An earlier checkpoint: say how far each tensor moved.")
@click.option("--json", "as_json", is_flag=True, help="Every number of every tensor as JSON.")
@click.option("--all", "all_tensors", is_flag=True, help="A line for each tensor.")
def command(checkpoint: str, against: str | None, as_json: bool, all_tensors: bool) -> None:
    from undertow.checkpoints.process_group import team_here
    from undertow.components.checkpoint_weights import weigh
    from undertow.show.report.checkpoint_report import weights_report

    with team_here() as team, bar("reading", in_bytes=True, wanted=team is None or team.leads) as progress:
        report = weigh(checkpoint, against, team, progress=progress)
    if report is None:
        return  # the first process has it
    if as_json:
        print_json(report)
    else:
        show(weights_report(report, all_tensors=all_tensors))
