"""`undertow explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from undertow.cli.output import print_json, say, show

if TYPE_CHECKING:
    from rich.console import RenderableType

    from undertow.explain.pages import Page


@click.command(
    help="What a code means, why it is bad, when it is wrong, and what to do. With VARIANT, as a finding names it: all "
    "about that condition of the code. Without CODE: all codes.",
    epilog="Example:  undertow explain UPD003 missing-from-optimizer",
)
@click.argument("code", required=False)
@click.argument("variant", required=False)
@click.option("--full", is_flag=True, help="All about every condition of the code, with code to paste.")
@click.option("--json", "as_json", is_flag=True, help="The whole page as JSON.")
def command(code: str | None, variant: str | None, full: bool, as_json: bool) -> None:
    from undertow.explain.pages import page_of, page_of_variant

    if code is None:
        _print_list(as_json)
        return
    page = page_of(code) if variant is None else page_of_variant(code, variant)
    if as_json:
        print_json(page)
    else:
        show(_in_full(page) if full or variant is not None else _in_brief(page))


def _print_list(as_json: bool) -> None:
    from undertow.detect.engine.registry import conditions
    from undertow.schema.codes import CODES

    spoken = {one.code for one in conditions()}
    if as_json:
        print_json([{"code": code, "name": name, "exists": code in spoken} for code, name in CODES.items()])
        return
    for code, name in CODES.items():
        say(f"{code}  {name}{'' if code in spoken else '  (reserved)'}")


def _in_brief(page: Page) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from undertow.explain.pages import in_brief

    parts: list[RenderableType] = [Text(f"{page.code} {page.name}", style="bold"), Text(page.summary)]
    for title, points in in_brief(page):
        bullets = Table.grid(padding=(0, 1))
        for point in points:
            bullets.add_row("  •", Text(point))
        parts += [Text(f"\n{title}", style="bold"), bullets] if points else []
    if page.variants:
        parts.append(
            Text(f"\nMore   undertow explain {page.code} {page.variants[0].variant}   or add --full", style="dim")
        )
    return Group(*parts)


def _in_full(page: Page) -> RenderableType:
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    from undertow.explain.pages import told

    parts: list[RenderableType] = [Text(f"{page.code} {page.name}", style="bold"), Text(page.summary)]
    for heading, sections in told(page):
        parts += [Text(f"\n{heading}", style="bold underline")] if heading else []
        for title, text in sections:
            parts += [Text(f"\n{title}", style="bold"), Padding(Text(text), (0, 0, 0, 2))]
    if page.remedies:
        parts.append(Text("\nWhat to do", style="bold"))
    for remedy in page.remedies:
        caution = f"Risk: {remedy.risk}" + (f" Not when: {remedy.when_not}" if remedy.when_not else "")
        parts += [
            Padding(Text(remedy.what), (0, 0, 0, 2)),
            Text("\n".join(f"    {line}" for line in remedy.how.splitlines()), style="bold"),
            Padding(Text(caution, style="dim"), (0, 0, 1, 2)),
        ]
    return Group(*parts)
