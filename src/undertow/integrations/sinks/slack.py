"""Findings as messages of Slack, to the address of an incoming webhook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from undertow.integrations.sinks.webhook import Webhook
from undertow.schema import Finding, Severity

_SIGNS = {
    Severity.INFO: ":information_source:",
    Severity.MILD: ":small_blue_diamond:",
    Severity.MODERATE: ":warning:",
    Severity.SEVERE: ":small_red_triangle:",
    Severity.CRITICAL: ":rotating_light:",
}
_MOST_LAYERS = 5
_LONGEST = 2900  # Slack refuses texts over 3,000 characters
_LONGEST_HEADER = 150


def open_sink(target: str, folder: Path, name: str) -> Webhook:
    return Webhook(target, name, message)


def message(finding: Finding, run: str) -> dict[str, Any]:
    title = f"{_SIGNS[finding.severity]} {finding.code} {finding.name}"
    text = _plain(finding.summary)
    if finding.remedies:
        text += f"\n*What to do:* {_plain(finding.remedies[0].what)}"
    where = ", ".join(finding.layers[:_MOST_LAYERS]) or "the whole model"
    if len(finding.layers) > _MOST_LAYERS:
        where += f" and {len(finding.layers) - _MOST_LAYERS} more"
    facts = f"{finding.severity} · step {finding.first_step} · {where} · {run}"
    return {
        "text": f"{finding.code} {finding.name}, {finding.severity}: {finding.summary}"[:_LONGEST],
        "blocks": [
            {"type": "header", "text": {"type": "plain_text", "text": title[:_LONGEST_HEADER], "emoji": True}},
            {"type": "section", "text": {"type": "mrkdwn", "text": text[:_LONGEST]}},
            {"type": "context", "elements": [{"type": "mrkdwn", "text": _plain(facts)[:_LONGEST]}]},
        ],
    }


def _plain(text: str) -> str:
    """Slack reads these three as its own."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
