"""Writes the pages that come from the source: `quantities.md` from the schema, `codes.md` from the rules, two of the
components from their records and the tables beside them.

python docs/generate.py
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from undertow.components import explosion, frame_summary, layer_health, weight_analyzer
from undertow.explain.pages import Page, page_of, told
from undertow.schema import seeds
from undertow.schema.codes import CODES
from undertow.schema.quantities import FLOW, QUANTITIES, STORED_HISTOGRAM_WIDTH, STORED_SKETCH_WIDTH, STREAMS, Stream

FOLDER = Path(__file__).parent
NOTE = "<!-- Made by docs/generate.py from the source. Do not edit. -->"

STREAM_NOTES = {
    "gradient": "Read when the backward pass of a step has ended: complete, unscaled, and before any clipping.",
    "weight": "Read right after the optimizer has stepped.",
    "update": "What the step changed, from the weights before and after it.",
    "activation": "Of modules, in sampled steps. Large outputs are read from their first samples.",
    "optimizer": "Read right after the optimizer has stepped, in the steps in which weights are measured.",
    "rank": "Only in distributed trainings: of parameters that several ranks hold, beside their weights or gradients.",
    "sketch": f"Directions, kept now and then for later analyses: {STORED_SKETCH_WIDTH} numbers per layer.",
    "histogram": "Whole distributions, at every 16th gradient frame and from the 1,024th on at every 64th: "
    f"{STORED_HISTOGRAM_WIDTH} numbers per layer.",
    "flow": "In steps in which modules are sampled; `run.along_connections(name)` has one column for each of "
    "`run.graph.connections`. See [capture.md](capture.md#shares-of-gradient).",
}


def quantities_page() -> str:
    parts = [
        NOTE,
        "# Quantities",
        _wrapped(
            f"Undertow records {len(QUANTITIES) - len(FLOW.names)} numbers per layer and {len(FLOW.names)} per "
            f"connection between modules, in {len(STREAMS)} streams. Quantities of a stream "
            "are measured at the same moment. All are float32, and NaN means *not measured*; a measured value that is "
            "not finite shows in the counts ([why](decisions/0002-nan-means-not-measured.md)). *From sketches* means "
            "estimated from a short image of the tensor instead of a copy: a norm is then right within about 7 %, a "
            "cosine within about 0.1, in 99 of 100 cases, and an update of exactly nothing is exactly 0 "
            "([why](decisions/0007-sketches-instead-of-copies.md))."
        ),
        "Numbers per step rather than per layer (loss, learning rate, …) are in "
        "[capture.md](capture.md#numbers-per-step).",
    ]
    for stream in STREAMS.values():
        layers = "module" if stream.covers_modules else "connection" if stream.covers_connections else "parameter"
        of = stream.quantities[0].of
        parts += [
            f"## {stream.name.capitalize()}",
            _wrapped(f"Per {layers}: {of}, unless said otherwise. {STREAM_NOTES[stream.name]}"),
            "\n".join(_table(stream, of)),
        ]
    return "\n\n".join(parts) + "\n"


def _table(stream: Stream, usual: str) -> Iterator[str]:
    yield "| quantity | unit | meaning |"
    yield "|---|---|---|"
    for quantity in stream.quantities:
        other = "" if quantity.of == usual else f" (of the {quantity.of})"
        yield f"| `{quantity.name}` | {quantity.unit} | {quantity.what}{other} |"


def codes_page() -> str:
    pages = [page_of(code) for code in CODES]
    spoken, reserved = [page for page in pages if page.exists], [page for page in pages if not page.exists]
    parts = [
        NOTE,
        "# Codes",
        _wrapped(
            f"A code means the same for ever. This version reports {len(spoken)} of them, described below with what "
            "can be done; `undertow explain CODE` prints the same page."
            + (f" The other {len(reserved)} are [reserved](#reserved): no rule reports them yet." if reserved else "")
        ),
        "An alarm is a finding of severity `moderate`, `severe` or `critical`; `info` and `mild` are remarks.",
        "\n".join(f"- [{page.code} {page.name}](#{page.code.lower()}-{page.name}): {page.summary}" for page in spoken),
    ]
    parts += [part for page in spoken for part in _code_parts(page)]
    if reserved:
        parts += ["## Reserved", "\n".join(f"- {page.code} {page.name}" for page in reserved)]
    return "\n\n".join(parts) + "\n"


def _code_parts(page: Page) -> Iterator[str]:
    yield f"## {page.code} {page.name}"
    yield page.summary
    for heading, sections in told(page):
        if heading:
            yield f"### {heading}"
        for title, text in sections:
            yield f"#### {title}" if len(page.variants) > 1 else f"### {title}"
            lines = "\n".join(f"- {line.strip()}" for line in text.splitlines())
            yield lines if title == "References" else _wrapped(text)
    if page.remedies:
        yield "### What to do"
    for remedy in page.remedies:
        yield f"**{remedy.what}**"
        # Indented, not fenced: a fragment for the reader's own code, which neither tests nor formatters take up.
        yield textwrap.indent(remedy.how, "    ")
        yield _wrapped(f"Risk: {remedy.risk}" + (f" Not when: {remedy.when_not}" if remedy.when_not else ""))


def _told(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / "components" / name).read_text(encoding="utf-8"))


def fields_page() -> str:
    """Every field of every record, in the order of the parts of the original."""
    meanings, differences = _told("fields.toml"), _told("differences.toml")
    differing = {name: key for key, one in differences.items() for name in one["fields"]}
    count = sum(len(one) for one in meanings.values())
    parts = [
        NOTE,
        "# Every field of every record",
        _wrapped(
            f"{len(meanings)} records with {count} fields, all importable from `undertow.schema`. A record that can "
            "hold None has `unavailable`, too: why, by field. All have `to_json`, `from_json`, `to_dict`, `from_dict`, "
            "compare by what they hold (NaN equals NaN), and print as a table. *Differs* leads to what the original "
            "does, and why it is done otherwise here."
        ),
    ]
    for record, texts in meanings.items():
        kinds = {one.name: one for one in fields(getattr(seeds, record))}
        rows = ["| field | type | meaning | unit | None when |", "|---|---|---|---|---|"]
        for name, text in texts.items():
            meaning, unit, when = [*(part.strip() for part in re.split(r" \|(?= |$)", text)), "", ""][:3]
            key = differing.get(f"{record}.{name}")
            page = "coming-from-trustformers-debug.md"
            link = f" ([differs]({page}#{key}))" if key else ""
            rows.append(f"| `{name}` | {_type(kinds[name])} | {_cell(meaning)}{link} | {_cell(unit)} | {_cell(when)} |")
        parts += [f"## {record}", "\n".join(rows)]
    return "\n\n".join(parts) + "\n"


def _type(field: Any) -> str:
    shown = re.sub(
        r"(typing|collections\.abc|collections|undertow\.[\w.]+)\.",
        "",
        str(getattr(field.type, "__name__", field.type)),
    )
    shown = str(field.type) if not isinstance(field.type, type) else shown
    default = "" if field.default is MISSING else f" = {getattr(field.default, 'value', field.default)}"
    return f"`{shown}{default}`".replace("|", "\\|")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def coming_from_page() -> str:
    text = (FOLDER / "components/coming-from.txt").read_text(encoding="utf-8")
    rows = ["| what | the original | here | why |", "|---|---|---|---|"]
    for key, one in sorted(_told("differences.toml").items(), key=lambda item: (item[1]["component"], item[0])):
        what = f'<a id="{key}"></a>{one["component"]}: {key.replace("-", " ")}'
        rows.append(f"| {what} | {_cell(one['original'])} | {_cell(one['here'])} | {_cell(one['why'])} |")
    return f"{NOTE}\n\n" + text.replace("{{differences}}", "\n".join(rows)).replace(
        "{{sentences}}", "\n".join(_sentences())
    )


def _sentences() -> Iterator[str]:
    """All that the components say, from the tables they say it from."""
    for title, said in SENTENCES.items():
        yield f"**{title}**\n"
        yield from (f"- {one}" for one in said())
        yield ""


SENTENCES: dict[str, Callable[[], list[str]]] = {
    "Weight issues and their recommendations": lambda: [
        f"{issue} → {advice}" for _, _, issue, advice in weight_analyzer.ISSUES.values()
    ],
    "Actions against an exploding layer": lambda: [
        *(f"{severity}: {text}" for severity, text in explosion.ACTIONS.items()),
        explosion.FIND_IT,
    ],
    "Mitigation of an explosion": lambda: [
        *(f"{severity}: {text}" for severity, texts in explosion.ADVICE.items() for text in texts),
        explosion.NONFINITE_ADVICE,
    ],
    "Closing sentences of the animator": lambda: [
        f"{health}: {text}" for health, text in frame_summary.CLOSING.items()
    ],
    "Risk factors": lambda: [str(risk) for risk in layer_health.Risk],
    "Suggestions for a layer": lambda: [f"{kind}: {what} {why}" for _, kind, what, why, *_ in layer_health.SUGGESTIONS],
    "Actions": lambda: [f"{kind}: {what}" for _, what, kind, *_ in layer_health.ACTIONS],
}


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


PAGES: dict[str, Callable[[], str]] = {
    "quantities.md": quantities_page,
    "codes.md": codes_page,
    "components/fields.md": fields_page,
    "components/coming-from-trustformers-debug.md": coming_from_page,
}


def main() -> None:
    for name, make in PAGES.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")
        print(f"wrote {FOLDER / name}")


if __name__ == "__main__":
    main()
