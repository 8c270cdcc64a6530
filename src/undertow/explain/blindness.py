"""What a record does not hold, so that silence about it means nothing."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine.registry import conditions
from undertow.schema import BlindRule, StreamCoverage
from undertow.schema.coverage import EVERY, seen_enough

_GAP = 20  # times the usual distance of two recorded steps
# What a condition declares that it needs, as it is called in a coverage. Updates are measured with the weights.
_STREAMS = {"gradient": "gradients", "weight": "weights", "update": "weights", "activation": "activations",
            "loss": "loss"}  # fmt: skip


def blind_rules(streams: Mapping[str, StreamCoverage]) -> tuple[BlindRule, ...]:
    """Codes of which every condition needs something that was hardly measured."""
    thin = {name: found for name, found in streams.items() if found.is_thin}
    by_code: dict[str, list[str | None]] = {}
    for condition in conditions():
        needs = (condition.tracker or condition).needs
        missing = next((_STREAMS[need] for need in sorted(needs) if _STREAMS.get(need) in thin), None)
        by_code.setdefault(condition.code, []).append(missing)
    return tuple(
        BlindRule(code, _measured(stream, thin[stream]), _setting(stream, thin[stream]))
        for code, missing in by_code.items()
        if (stream := missing[0]) is not None and None not in missing
    )


def unseen_streams(streams: Mapping[str, StreamCoverage], blind: tuple[BlindRule, ...]) -> list[str]:
    """In words, the gravest first: what was hardly measured, and what would measure it."""
    found: list[str] = []
    for name in ("gradients", "loss", "weights", "activations"):
        stream = streams.get(name)
        if stream is not None and stream.is_thin:
            measured = _measured(name, stream)
            codes = [one.code for one in blind if one.why == measured]
            unjudged = f", too rarely to judge {_listed(codes)}" if codes else ""
            found.append(f"{measured}{unjudged} ({_setting(name, stream)} would look closer)")
    return found


def record_gap(steps: NDArray[np.int64]) -> list[str]:
    """In words, the longest stretch that is missing; steps that are skipped regularly are none."""
    distances = np.diff(steps)
    if len(distances) < 2:
        return []
    place = int(np.argmax(distances))
    usual = max(1.0, float(np.median(distances)))
    if distances[place] <= _GAP * usual:
        return []
    return [f"no step between {int(steps[place]):,} and {int(steps[place + 1]):,} is in the record"]


def _measured(name: str, stream: StreamCoverage) -> str:
    if not stream.steps:
        return "no loss was seen" if name == "loss" else f"{name} were never measured"
    if name == "loss":
        return f"the loss was seen at {stream.steps:,} of {stream.of:,} steps"
    if stream.steps >= seen_enough(stream.of) and stream.largest_gap is not None:
        few = f"{stream.layers_seldom:,} of {stream.layers:,} layers"
        return f"{few} had no {name} measured for up to {stream.largest_gap:,} steps"
    return f"{name} were measured at only {stream.steps:,} of {stream.of:,} steps"


def _setting(name: str, stream: StreamCoverage) -> str:
    if name == "loss":
        return "watch.log(loss=...)"
    option = "--activations" if name in ("activations", "attention") else "--every"
    return f"{option} {max(1, min(EVERY, stream.of // 10))}"


def _listed(codes: list[str]) -> str:
    return ", ".join(codes) if len(codes) <= 3 else f"{', '.join(codes[:2])} and {len(codes) - 2} other codes"
