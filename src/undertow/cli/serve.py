"""`undertow serve`."""

import sys
import webbrowser
from pathlib import Path
from urllib.parse import quote

import click

from undertow.errors import UnreadableRunError


@click.command(
    help="The dashboard, in a browser, for the runs below ROOT_OR_RUN (default: UNDERTOW_DIR, else runs/) or for one "
    "run. It reads run folders only. The address on the first line holds a token: whoever has it can read the runs.",
    epilog="Example:  undertow serve runs/ --no-open",
)
@click.argument("root_or_run", required=False, type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), help="Listen there; without it the first free port from 7007.")
@click.option("--no-open", is_flag=True, help="Do not open a browser.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Listen on this address. Anything but the default lets others on the network reach the dashboard.",
)
@click.option(
    "--allow-host",
    "allowed",
    multiple=True,
    metavar="NAME",
    help="Accept this host name as well, as behind a proxy. May be repeated.",
)
def command(root_or_run: Path | None, port: int | None, no_open: bool, host: str, allowed: tuple[str, ...]) -> None:
    root, page = _root_and_page(root_or_run)
    from undertow.show.web.guard import LOOPBACK
    from undertow.show.web.server import Dashboard

    dashboard = Dashboard(root, host, port, allowed)
    click.echo(dashboard.address(page))
    sys.stdout.flush()
    if host not in LOOPBACK:
        click.echo(
            f"undertow: listening on {host}: everybody who can reach this machine and knows the token can read "
            "these runs, and the connection is not encrypted.",
            err=True,
        )
    if not no_open:
        webbrowser.open(dashboard.address_for_once(page))
    dashboard.serve()


def _root_and_page(given: Path | None) -> tuple[Path, str]:
    """The folder whose runs are served, and the page of the run if one was named."""
    from undertow.run import locate
    from undertow.settings import Settings
    from undertow.store.run_documents import RUN_FILE

    if given is None:
        return Settings.resolve().directory, ""
    if given.is_dir() and not (given / RUN_FILE).exists():
        return given, ""
    folder = locate(given)
    if not (folder / RUN_FILE).exists():
        raise UnreadableRunError(f"{given} is no run and no folder of runs", way_out="`undertow runs` lists the runs")
    return folder.resolve(), f"#/run?run={quote('.')}"
