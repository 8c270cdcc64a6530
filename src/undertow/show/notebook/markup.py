"""HTML from data. A notebook may be dark or light and keeps no style sheet: every element carries what it needs."""

from collections.abc import Iterable
from html import escape

from undertow.schema import Health, Severity

# Middle tones, to be read on white and on black.
COLOURS: dict[Severity | Health | None, str] = {
    Severity.INFO: "#7a8694",
    Severity.MILD: "#0f8aa5",
    Severity.MODERATE: "#b07a00",
    Severity.SEVERE: "#d2601a",
    Severity.CRITICAL: "#d0289b",
    Health.HEALTHY: "#3b82e0",
    Health.MINOR: "#0f8aa5",
    Health.PROBLEMS: "#d2601a",
    Health.CRITICAL: "#d0289b",
    None: "#7a8694",
}
QUIET = "opacity:0.72;font-size:0.9em"
_LONGEST = 300  # characters of a name


def text(value: object) -> str:
    """Text is only ever text: names of runs and layers are written by anybody."""
    return escape(str(value))


def name(value: str) -> str:
    """A name, kept from turning the text around it."""
    shown = value if len(value) <= _LONGEST else f"{value[: _LONGEST // 2]}…{value[-_LONGEST // 2 :]}"
    return f"<bdi>{escape(shown)}</bdi>"


def box(*parts: str) -> str:
    style = (
        "border:1px solid rgba(128,128,128,0.35);border-radius:8px;padding:10px 14px;max-width:980px;line-height:1.45"
    )
    return f'<div class="undertow" style="{style}">{"".join(parts)}</div>'


def paragraph(content: str, style: str = "") -> str:
    return f'<p style="margin:4px 0;{style}">{content}</p>'


def coloured(content: str, of: Severity | Health | None) -> str:
    return f'<span style="color:{COLOURS[of]};font-weight:650">{content}</span>'


def code(content: str) -> str:
    style = "margin:4px 0;padding:6px 9px;background:rgba(128,128,128,0.14);border-radius:5px;overflow-x:auto"
    return f'<pre style="{style}">{escape(content)}</pre>'


def folded(title: str, content: str, *, is_open: bool = False) -> str:
    style = "cursor:pointer;margin:3px 0"
    return f'<details{" open" if is_open else ""}><summary style="{style}">{title}</summary>{content}</details>'


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """Words on the left, text on the right."""
    cells = "".join(f'<div style="opacity:0.72">{text(left)}</div><div>{text(right)}</div>' for left, right in rows)
    return f'<div style="display:grid;grid-template-columns:max-content minmax(0,1fr);gap:2px 14px">{cells}</div>'
