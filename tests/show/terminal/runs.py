"""Small runs on disk: every kind of cell, names as bad as they come, and findings in the journal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from undertow.detect.engine import Change, FindingChange
from undertow.detect.engine.journal import to_record
from undertow.schema import (
    Block,
    Finding,
    Frame,
    Layer,
    LayerGraph,
    LayerKind,
    LayerTable,
    RunFacts,
    RunStatus,
    Severity,
)
from undertow.schema.quantities import GRADIENT
from undertow.store.writer import RunWriter

PLAIN = ("embedding.weight", "encoder.weight", "encoder.bias", "middle.weight", "frozen.weight", "head.weight")
HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07evil",
    "层.注意力.权重",
    "🔥.emoji🚀.weight",
    "a\nb\r\tc",
    "\u202egnp.exe",
    "x" * 300,
)


class Story:
    """A run that is written step by step: healthy, then NaN in the middle; one layer cut off, one frozen, one zero."""

    def __init__(self, folder: Path, names: Sequence[str] = PLAIN, running: bool = False) -> None:
        self.folder = folder
        self.names = names
        self.facts = RunFacts(undertow="0.1.0", name="story")
        self.writer = RunWriter(folder, self.facts)
        layers = [Layer(name, kind=LayerKind.WEIGHT, order=place) for place, name in enumerate(names)]
        self.writer.set_layers(LayerTable.of(layers), LayerGraph())
        self.writer.event("layers", None, count=len(layers))
        self.step = 0
        self.running = running

    def write(self, steps: int, bad: bool = False, every: int = 1) -> Story:
        for _ in range(steps):
            count = len(self.names)
            values = np.full((len(GRADIENT.quantities), count), np.nan, np.float32)
            norms = 10.0 ** -np.arange(count, dtype=np.float32) * (1 + 0.5 * np.sin(self.step / 5))
            nonfinite, states = np.zeros(count, np.float32), np.zeros(count, np.float32)
            norms[0], states[0], nonfinite[0] = np.nan, 1, np.nan  # no gradient
            norms[2] = 0
            norms[4], states[4], nonfinite[4] = np.nan, 2, np.nan  # frozen
            if bad:
                norms[3], nonfinite[3] = np.nan, 7
            for name, row in (("norm", norms), ("nonfinite_count", nonfinite), ("state", states)):
                values[GRADIENT.names.index(f"gradient_{name}")] = row
            loss = np.nan if bad else 2.0 / (1 + self.step / 20)
            block = Block("gradient", np.arange(count, dtype=np.int32), values)
            self.writer.append(Frame(self.step, self.step, float(self.step), {"loss": loss}, {"gradient": block}))
            self.step += every
        return self

    def find(self, code: str = "NUM001", layer: str = "middle.weight", severity: Severity = Severity.CRITICAL) -> Story:
        summary = f"The gradient of {layer} turned non-finite at step {self.step}."
        finding = Finding(
            code, "non-finite-gradient", severity, (layer,), self.step, self.step, self.step, True, 1.0, summary
        )
        change = FindingChange(Change.OPENED, finding)
        self.writer.event("finding", self.step, **to_record(change))
        return self

    def end(self) -> Path:
        self.facts.status = RunStatus.FINISHED
        self.writer.write_facts()
        self.writer.close()
        return self.folder


def story(folder: Path, names: Sequence[str] = PLAIN) -> Path:
    """Sixty good steps and sixty bad ones."""
    return Story(folder, names).write(60).find(layer=names[3]).write(60, bad=True).end()
