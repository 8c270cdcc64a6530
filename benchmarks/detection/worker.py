"""One case, all its seeds, in a process of its own: train under watch, diagnose, and let the baselines judge, too.

`python -m benchmarks.detection.worker TIER CASE SEEDS EVERY` prints one JSON object per run.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import undertow
from benchmarks.detection.advice import advice_of
from benchmarks.detection.baselines import judge_all
from benchmarks.detection.cases import load
from benchmarks.detection.recorded import reports
from corpus.fault_lines import fault_lines
from undertow.demos.case import Case


def main() -> int:
    tier, name, seeds, every = sys.argv[1:5]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    truth = load(tier)[name]
    for seed in map(int, seeds.split(",")):
        print(json.dumps(examine(truth, seed, every)), flush=True)
    return 0


def examine(truth: Case, seed: int, every: str) -> dict[str, Any]:
    """Find the model as `undertow run` would, and diagnose from the folder alone."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        with undertow.watch(None, run_dir=path, every=every if every == "auto" else int(every), quiet=True):
            metrics = truth.run(seed=seed)
        seconds = time.perf_counter() - start
        run = undertow.open_run(path)
        diagnosis = run.diagnose()
        judges = {"Undertow": reports(diagnosis), **judge_all(run)}
        owners = {layer.group or layer.path for layer in run.layers.parameters}
    return {
        "tier": truth.tier, "case": truth.name, "seed": seed, "metrics": metrics, "status": str(run.status),
        "recorded": diagnosis.steps.recorded, "seconds": round(seconds, 2), "judges": judges,
        "advice": advice_of(diagnosis), "fault_lines": fault_lines(truth),
        # The chance that a layer drawn at random is a guilty one.
        "random_layer": sum(truth.accepts(owner) for owner in owners) / max(1, len(owners)),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
