"""The diagnosis in at most 4 kB, whatever the run: for a coding agent, a chat, a commit message."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from undertow.run import Run
from undertow.schema import Diagnosis, Finding

MOST_BYTES = 4000
_LAYERS, _EVIDENCE, _OTHERS = 3, 2, 5
_LONG, _SHORT = 400, 160  # characters of a text


def in_brief(diagnosis: Diagnosis, run: Run) -> dict[str, Any]:
    """How it ended, its health, the cause with its place, evidence and first remedy, and how to look further."""
    first, others = (diagnosis.findings[0], diagnosis.findings[1:]) if diagnosis.findings else (None, ())
    record: dict[str, Any] = {
        "undertow": diagnosis.undertow,
        "run": _folder(run),
        "status": diagnosis.status,
        "message": _cut(diagnosis.message, _SHORT),
        "command": _cut(" ".join(run.facts.command), _SHORT),
        "steps": diagnosis.steps,
        "health": diagnosis.health,
        "complete": diagnosis.complete,
        "loss": _summary(run, "loss"),
        "learning_rate": _summary(run, "lr"),
        "cause": None if first is None else _cause(first),
        "also": {"count": len(others), "first": [_remark(finding) for finding in others[:_OTHERS]]},
        "not_judged": [blind.code for blind in diagnosis.coverage.blind],
        "reasons": [_cut(reason, _SHORT) for reason in diagnosis.coverage.reasons[:_EVIDENCE]],
        "more": list(_commands(run, first)),
    }
    return _shortened(record)


def _cause(finding: Finding) -> dict[str, Any]:
    source = getattr(finding, "source", ())
    remedy = finding.remedies[0] if finding.remedies else None
    evidence = [
        replace(one, layer=one.layer and _cut(one.layer, _SHORT // 2), how=_cut(one.how, _SHORT))
        for one in finding.evidence[:_EVIDENCE]
    ]
    return _remark(finding) | {
        "confidence": finding.confidence,
        "first_step": finding.first_step,
        "detected_step": finding.detected_step,
        "ongoing": finding.ongoing,
        "source": msgspec.to_builtins(source[0]) if source else None,
        "evidence": evidence,
        "remedy": None if remedy is None else {"what": _cut(remedy.what, _SHORT), "how": _cut(remedy.how, _LONG)},
    }


def _remark(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "variant": finding.variant,
        "name": finding.name,
        "severity": finding.severity,
        "layers": {
            "count": len(finding.layers),
            "first": [_cut(path, _SHORT // 2) for path in finding.layers[:_LAYERS]],
        },
        "summary": _cut(finding.summary, _SHORT),
    }


def _summary(run: Run, name: str) -> dict[str, float | None] | None:
    """Where a number per step begins, ends, and how low and high it gets; NaN becomes null."""
    values = run.scalars(name) if name in run.scalar_names else np.empty(0)
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    return {
        "first": float(values[0]),
        "last": float(values[-1]),
        "least": float(known.min()),
        "most": float(known.max()),
    }


def _commands(run: Run, first: Finding | None) -> Iterator[str]:
    folder = _folder(run)
    yield f"undertow report {folder} --json"
    if first is not None:
        yield f"undertow explain {first.code} {first.variant}".rstrip()
        if first.layers:
            yield f"undertow export {folder} --to csv --layers '{_cut(first.layers[0], _SHORT // 2)}'"


def _folder(run: Run) -> str:
    """A file system's name need be no text: what JSON cannot hold is a question mark."""
    return _cut(str(run.folder).encode("utf-8", "replace").decode(), _SHORT)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _shortened(record: dict[str, Any]) -> dict[str, Any]:
    """Names may be as long as anybody likes, and letters of some scripts take four bytes: leave out from the end."""
    cause = record["cause"]
    spare = [record["also"]["first"], record["not_judged"], record["reasons"], record["more"]]
    spare += [] if cause is None else [cause["evidence"], cause["layers"]["first"]]
    while len(msgspec.json.format(msgspec.json.encode(record), indent=2)) > MOST_BYTES and any(spare):
        next(one for one in spare if one).pop()
    return record
