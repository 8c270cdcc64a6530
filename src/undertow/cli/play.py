"""`undertow play`: a run as a moving heatmap in the terminal."""

import shutil
import sys

import click

from undertow.cli.output import RUN_HELP, run_argument

COLOURS = ("auto", "truecolour", "256", "16", "none")


@click.command(
    "play",
    help="The heatmap of a run in the terminal: live while it is written, replayed when it is over; press ? for the "
    f"keys. Where nothing can be drawn, plain lines and one picture.\n\n{RUN_HELP}",
    epilog="Example:  undertow play latest --quantity update_ratio",
)
@run_argument
@click.option("--quantity", default="gradient_norm", show_default=True, metavar="NAME", help="What the colours show.")
@click.option("--layers", default="", metavar="GLOBS", help="Only layers that match: attn, or 'blocks.*.mlp.* head.*'.")
@click.option(
    "--palette", default="default", show_default=True, help="default, high-contrast, colour-blind, monochrome."
)
@click.option(
    "--colours", type=click.Choice(COLOURS), default="auto", show_default=True, help="How many colours to use."
)
@click.option("--once", is_flag=True, help="Print one picture of the whole run and stop.")
def command(run: str, quantity: str, layers: str, palette: str, colours: str, once: bool) -> None:
    from undertow.run import open_run
    from undertow.show.terminal.ability import Depth, ability_of, can_be_drawn_on
    from undertow.show.terminal.camera import Camera
    from undertow.show.terminal.picture import Picture
    from undertow.show.terminal.plain_lines import Lines, still
    from undertow.store.names import known_name
    from undertow.views.palette import palette_of

    opened = open_run(run)
    if opened.quantities:
        known_name(quantity, opened.quantities, "quantity")
    chosen = palette_of(palette)
    ability = ability_of(sys.stdout, depth=None if colours == "auto" else Depth(colours))
    camera = Camera(opened, quantity, layers)
    if not once and can_be_drawn_on(sys.stdout):
        from undertow.show.terminal.player import Player
        from undertow.show.terminal.screen import Screen

        Player(camera, ability, chosen.scheme).play(Screen.here())
        return
    if not once:
        Lines(camera, click.echo, ability).until_it_ends()
    columns = shutil.get_terminal_size((80, 24)).columns
    for line in still(Picture(camera, ability, chosen), max(20, columns)):
        click.echo(line)
