"""The file: what a browser may do with it, its style, its scripts, its numbers, and words for those without scripts."""

from __future__ import annotations

import base64
import hashlib
import html
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from undertow.errors import UnwritableRunError
from undertow.run import Run
from undertow.schema.findings import Diagnosis
from undertow.show.html.modules import joined
from undertow.show.html.plain import plain
from undertow.show.html.snapshot import Extent, snapshot
from undertow.views.verdict import Verdict

_STATIC = Path(__file__).parents[1] / "web" / "static"
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


def write_report(run: Run, file: Path, tell: Callable[[str], None] = lambda message: None) -> int:
    """Write the report of a run, and say how many bytes it has. An old file is never half overwritten."""
    tell("judging the run")
    verdict = Verdict(run.diagnose(), from_journal=False)
    text = page(verdict.diagnosis, snapshot(run, verdict, Extent(), tell)).encode()
    partial = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        partial.write_bytes(text)
        partial.replace(file)
    except OSError as problem:
        raise UnwritableRunError(
            f"{file} cannot be written: {problem.strerror or problem}", way_out="Choose another file"
        ) from None
    finally:
        partial.unlink(missing_ok=True)
    return len(text)


def page(diagnosis: Diagnosis | None, data: bytes = b"") -> str:
    """A whole page. Without data it waits until it is sent some, as in a notebook."""
    style, script = _style(), _script()
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return _PAGE.format(
        policy=policy,
        title=html.escape(f"{diagnosis.run[:200]} · Undertow" if diagnosis else "Undertow"),
        style=style,
        words=plain(diagnosis) if diagnosis else "",
        data=base64.b64encode(data).decode(),
        script=script,
    )


@cache
def _style() -> str:
    return "\n".join((_STATIC / name).read_text(encoding="utf-8") for name in _STYLES)


@cache
def _script() -> str:
    script = joined(_STATIC, "report.js", {"server.js": "embedded.js"})
    assert "</script" not in script.lower()
    return script


def _hash(text: str) -> str:
    """How a policy names the one script, and the one style, that may be used."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
