"""A run to look at, the dashboard that serves it, and the browser that looks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from undertow.schema import STREAMS, Block, Frame, Layer, LayerGraph, LayerTable, RunFacts, RunStatus
from undertow.store.writer import RunWriter

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
GRADIENT = STREAMS["gradient"].names
# The heatmap counts as there when its canvas shows more than a handful of colours to the right of the names.
DRAWN = """() => {
  const canvas = document.querySelector(".heatmap");
  if (!canvas?.width) return false;
  const { data } = canvas.getContext("2d").getImageData(300, 0, 400, Math.min(200, canvas.height - 30));
  return new Set(new Uint32Array(data.buffer)).size > 12;
}"""


def write_run(folder: Path, layers: int, steps: int) -> None:
    facts = RunFacts(name=f"{layers} × {steps}")
    writer = RunWriter(folder, facts)
    paths = [f"blocks.{i // 10}.part{i % 10}.weight" for i in range(layers)]
    writer.set_layers(LayerTable.of(Layer(path, order=i) for i, path in enumerate(paths)), LayerGraph())
    random, ids = np.random.default_rng(0), np.arange(layers, dtype=np.int32)
    slope = np.linspace(-5, 0, layers)
    noise = 0.3 * random.normal(size=(64, layers))
    values = np.full((len(GRADIENT), layers), np.nan, np.float32)
    values[GRADIENT.index("gradient_nonfinite_count")] = values[GRADIENT.index("gradient_state")] = 0
    for step in range(steps):
        values[GRADIENT.index("gradient_norm")] = 10 ** (slope - step / steps + noise[step % 64])
        block = Block("gradient", ids, values.copy())
        assert writer.append(Frame(step, step, float(step), {"loss": 1 / (1 + step)}, {"gradient": block}))
    facts.status = RunStatus.FINISHED
    writer.write_facts()
    writer.close()


class Served:
    def __init__(self, root: Path) -> None:
        command = [sys.executable, "-m", "undertow", "serve", str(root), "--no-open", "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()

    def megabytes(self) -> float:
        """Memory of its own: files that it has mapped belong to the system."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("this system does not tell how much memory a process has")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
