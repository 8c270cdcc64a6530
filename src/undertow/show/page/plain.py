"""The verdict in plain HTML: for browsers without scripts, readers of mail, and searches."""

from html import escape

from undertow.schema import Diagnosis, Finding

_MOST_LAYERS = 12
_LONGEST = 400  # characters of a name


def plain(diagnosis: Diagnosis) -> str:
    """Text is only ever text: names of runs and layers are written by anybody."""
    health = diagnosis.health or "no verdict"
    parts = [f"<h1>{health}</h1>", f"<p>{escape(diagnosis.run[:_LONGEST])}</p>", f"<p>{escape(diagnosis.story)}</p>"]
    parts += [_finding(finding) for finding in diagnosis.findings]
    return f'<article class="page plain">{"".join(parts)}</article>'


def _finding(finding: Finding) -> str:
    more = len(finding.layers) - _MOST_LAYERS
    layers = ", ".join(f"<bdi>{escape(layer[:_LONGEST])}</bdi>" for layer in finding.layers[:_MOST_LAYERS])
    where = f"<p>{layers}{f' and {more:,} more' if more > 0 else ''}</p>" if layers else ""
    remedies = "".join(
        f"<p>{escape(remedy.what)}</p><pre>{escape(remedy.how)}</pre>"
        if remedy.how
        else f"<p>{escape(remedy.what)}</p>"
        for remedy in finding.remedies
    )
    title = f"{finding.severity}: {finding.code} {finding.name}"
    return f"<h2>{escape(title)}</h2><p>{escape(finding.summary)}</p>{where}{remedies}"
