"""A page in one piece: what a browser may do with it, its style, scripts and numbers, and words without scripts."""

import base64
import hashlib
from functools import cache
from html import escape

from undertow.schema import Diagnosis, Finding
from undertow.show.page import STATIC
from undertow.show.page.script_modules import joined

_MOST_LAYERS = 12
_LONGEST = 400  # characters of a name
_STYLES = ("style.css", "report.css")
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="Undertow">
<title>{title}</title>
<style>{style}</style>
</head>
<body class="report">
<a class="skip" href="#main">Skip to the content</a>
<header id="bar"></header>
<main id="main" tabindex="-1">{words}</main>
<div id="notice" role="status" aria-live="polite"></div>
<script type="application/octet-stream" id="data">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def page(diagnosis: Diagnosis | None, data: bytes = b"") -> str:
    """A whole page. Without data it waits until it is sent some, as in a notebook."""
    style, script = _style(), _script()
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return _PAGE.format(
        policy=policy,
        title=escape(f"{diagnosis.run[:200]} · Undertow" if diagnosis else "Undertow"),
        style=style,
        words=_plain(diagnosis) if diagnosis else "",
        data=base64.b64encode(data).decode(),
        script=script,
    )


@cache
def _style() -> str:
    return "\n".join((STATIC / name).read_text(encoding="utf-8") for name in _STYLES)


@cache
def _script() -> str:
    script = joined(STATIC, "report.js", {"server.js": "embedded.js"})
    assert "</script" not in script.lower()
    return script


def _hash(text: str) -> str:
    """How a policy names the one script, and the one style, that may be used."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _plain(diagnosis: Diagnosis) -> str:
    """The verdict for browsers without scripts, readers of mail, and searches. Names are written by anybody."""
    health = diagnosis.health or "no verdict"
    parts = [f"<h1>{health}</h1>", f"<p>{escape(diagnosis.run[:_LONGEST])}</p>", f"<p>{escape(diagnosis.story)}</p>"]
    parts += [_finding(finding) for finding in diagnosis.findings]
    return f'<article class="page plain">{"".join(parts)}</article>'


def _finding(finding: Finding) -> str:
    more = len(finding.layers) - _MOST_LAYERS
    layers = ", ".join(f"<bdi>{escape(layer[:_LONGEST])}</bdi>" for layer in finding.layers[:_MOST_LAYERS])
    where = f"<p>{layers}{f' and {more:,} more' if more > 0 else ''}</p>" if layers else ""
    remedies = "".join(
        f"<p>{escape(remedy.what)}</p>" + (f"<pre>{escape(remedy.how)}</pre>" if remedy.how else "")
        for remedy in finding.remedies
    )
    title = f"{finding.severity}: {finding.code} {finding.name}"
    return f"<h2>{escape(title)}</h2><p>{escape(finding.summary)}</p>{where}{remedies}"
