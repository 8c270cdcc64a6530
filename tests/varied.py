"""A run with a bit of everything: layers that are calm, noisy, dead, that vanish, explode and swing; made by hand."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from tests.detect.building import HEALTHY, Training

from undertow.schema import STREAMS, RunFacts, RunStatus
from undertow.store.writer import RunWriter

NAMES = ("stem", "blocks.0.a", "blocks.0.b", "blocks.1.a", "blocks.1.b", "head")
MEASURED = ("gradient", "weight", "update", "activation")
STEPS = 48
SIZE = re.compile(r"_(norm|rms|mean|mean_abs|std|min|max|max_abs|p05|p50|p95|drift|ratio)$")


def varied_run(folder: Path, seed: int = 0) -> Path:
    training, chance = Training(*NAMES), np.random.default_rng(seed)
    single = [one for stream in MEASURED for one in STREAMS[stream].names if SIZE.search(one)]
    for step in range(STEPS):
        noise = {name: np.exp(chance.normal(0, 0.2, len(NAMES))) for name in single}
        values = {
            name: {path: HEALTHY.get(name, 0.1) * size for path, size in zip(NAMES, noise[name])} for name in noise
        }
        for name in ("gradient_norm", "gradient_rms", "stepped_gradient_norm"):
            size = values.setdefault(name, dict.fromkeys(NAMES, 0.1))
            size["stem"] *= 0.7 ** (step / 2)
            size["blocks.0.a"] *= 1.12**step
            size["blocks.0.b"] = 0.0 if step > 30 else size["blocks.0.b"]
            size["blocks.1.a"] *= 4.0 if step % 2 else 0.25
        values["gradient_zero_fraction"] = {"blocks.0.b": float(step > 30)}
        values["gradient_nonfinite_count"] = {"head": 3.0 if step > 44 else 0.0}
        scalars = {
            "loss": 2.0 * 0.9 ** min(step, 25) + 0.02 * float(chance.normal()),
            "lr": 0.1 if step < 40 else 0.01,
            "step_time": 0.25 + 0.01 * (step % 5),
            "gradient_norm_total": float(np.sqrt(sum(one**2 for one in values["gradient_norm"].values()))),
        }
        training.run(1, scalars=scalars, **values)
    facts = RunFacts(undertow="0.1.0", name=f"varied {seed}", command=["undertow", "run", "train.py"], created=1e9)
    facts.settings, facts.status = {"every": 1 + seed}, RunStatus.FINISHED
    writer = RunWriter(folder, facts)
    writer.set_layers(training.layers, training.graph)
    for frame in training.frames:
        assert writer.append(frame)
    writer.write_facts()
    writer.close()
    return folder
