"""What every condition says in its own tests, to the letter: a change of a rule shows here what it changes.

WRITE_GOLDEN=1 python -m pytest -n 0 tests/detect/rules     after a change that is meant; then read the difference
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from undertow.detect.engine import Engine
from undertow.explain.remedies import with_remedies
from undertow.schema import Block, Finding, Frame

GOLDEN = Path(__file__).parent / "golden"
HEADING = "# "


@pytest.fixture(autouse=True)
def what_was_found_is_as_before(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    shown: dict[Engine, list[tuple[str, tuple[Any, ...]]]] = {}  # all that an engine was told
    methods = {name: getattr(Engine, name) for name in ("__init__", "set_layers", "changes")}

    def noting(name: str) -> Callable[..., Any]:
        def noted(engine: Engine, *arguments: Any) -> Any:
            shown.setdefault(engine, []).append((name, arguments))
            return methods[name](engine, *arguments)

        return noted

    for name in methods:
        monkeypatch.setattr(Engine, name, noting(name))
    yield
    if hasattr(request.function, "hypothesis"):
        return
    engines = list(shown)
    for name, method in methods.items():
        monkeypatch.setattr(Engine, name, method)
    for told in shown.values():
        show_poor_frames(told)
    texts = [text_of(finding) for engine in engines for finding in engine.findings()]
    said = "\n".join(dict.fromkeys(texts))
    path = GOLDEN / request.path.parent.name / f"{request.path.stem.removeprefix('test_')}.txt"
    known, name = read(path), request.node.name
    if os.environ.get("WRITE_GOLDEN"):
        write(path, {**known, name: said})
    else:
        assert said == known.get(name, ""), f"{name} finds something else: is that meant? See the head of {__name__}"


def show_poor_frames(told: list[tuple[str, tuple[Any, ...]]]) -> None:
    """Each stream is missing from every third step: no condition stumbles, and what is said is sound."""
    (_, kinds), *rest = told
    engine = Engine(*kinds)
    for name, arguments in rest:
        if name == "set_layers":
            engine.set_layers(*arguments)
        else:
            list(engine.changes([poor(frame) for frame in arguments[0]]))


def poor(frame: Frame) -> Frame:
    blocks = {name: one for place, (name, one) in enumerate(frame.blocks.items()) if (frame.step + place) % 3}
    if frame.step % 7 == 2:
        blocks = {
            name: Block(name, one.layer_ids, np.full_like(one.values, np.nan)) for name, one in frame.blocks.items()
        }
    kept = frame.scalars if frame.step % 5 else {"loss": frame.scalars.get("loss", math.nan)}
    return replace(frame, blocks=blocks, scalars=kept)


def text_of(finding: Finding) -> str:
    known = with_remedies(finding)
    state = "ongoing" if finding.ongoing else "over"
    steps = f"from {finding.first_step}, detected {finding.detected_step}, last {finding.last_step}, {state}"
    lines = [
        f"{finding.code} {finding.variant}: {finding.severity}, confidence {finding.confidence:.3g}, {steps}",
        f"  {finding.summary}",
        f"  layers: {', '.join(finding.layers) or 'none'}",
        *(
            f"  {one.quantity} of {one.layer}: {number(one.value)}, expected {number(one.expected)}; {one.how}"
            for one in finding.evidence
        ),
        f"  remedies: {', '.join(remedy.id for remedy in known.remedies) or 'none'}",
    ]
    return "\n".join(lines)


def number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def read(path: Path) -> dict[str, str]:
    """The texts by the names of the tests; a test that finds nothing is not there."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        if line.startswith(HEADING):
            name = line.removeprefix(HEADING)
        elif line:
            found.setdefault(name, []).append(line)
    return {name: "\n".join(lines) for name, lines in found.items()}


def write(path: Path, texts: dict[str, str]) -> None:
    parts = [f"{HEADING}{name}\n{text}\n" for name, text in sorted(texts.items()) if text]
    if parts:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(parts), encoding="utf-8")
    else:
        path.unlink(missing_ok=True)
