"""The same trainings under trainscope, the real package, attached as its documentation says.

`python -m benchmarks.detection.trainscope TIER CASE SEEDS` prints one JSON object per run. Its verdict is that of
`trainscope report`: the signals that fired, and the step at which the loss exploded.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from benchmarks.detection.cases import load

# What each of its signals says, in our codes; generous: any of them counts as right.
MEANING = {
    "grad_norm": ["GRD002", "GRD006"],
    "loss": ["OPT001", "OPT003", "OPT007"],
    "kurtosis": ["WGT004", "ACT002"],
    "concentration": ["ACT005"],
    "explosion": ["NUM002", "OPT001", "GRD002"],
}


class Attached:
    """One scope per model, made at its first step; it hears of a step once for every backward."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.loss, self.backwards = folder, float("nan"), 0
        self.scopes: dict[int, Any] = {}
        self.heard: dict[int, int] = {}
        self.roots: dict[int, tuple[Optimizer, list[torch.nn.Module]]] = {}

    def on_backward(self, loss: torch.Tensor) -> None:
        self.loss, self.backwards = float(loss.detach().float().sum()), self.backwards + 1

    def on_step(self, optimizer: Optimizer, *_: Any) -> None:
        from trainscope import TrainScope, TrainScopeConfig

        from undertow.probe.discovery import find_roots, optimizer_tensors

        if id(optimizer) not in self.roots:  # an optimizer is kept with its model: an id must not be used again
            self.roots[id(optimizer)] = optimizer, find_roots(optimizer_tensors([optimizer]))[:1]
        for root in self.roots[id(optimizer)][1]:
            if id(root) not in self.scopes:
                config = TrainScopeConfig(run_dir=str(self.folder), run_name=f"run{len(self.scopes)}")
                self.scopes[id(root)] = TrainScope(root, optimizer, config=config).attach()
            if self.heard.get(id(root)) != self.backwards:
                self.heard[id(root)] = self.backwards
                self.scopes[id(root)].step(self.loss)


def main() -> int:
    tier, name, seeds = sys.argv[1:4]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    truth = load(tier)[name]
    plain_backward = torch.Tensor.backward
    for seed in map(int, seeds.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            attached = Attached(Path(folder))

            def backward(self: torch.Tensor, *args: Any, **options: Any) -> None:
                attached.on_backward(self)  # noqa: B023
                plain_backward(self, *args, **options)

            torch.Tensor.backward = backward  # type: ignore[method-assign]
            handle = register_optimizer_step_pre_hook(attached.on_step)
            try:
                truth.run(seed=seed)
            finally:
                handle.remove()
                torch.Tensor.backward = plain_backward  # type: ignore[method-assign]
            for scope in attached.scopes.values():
                scope.detach()
            reports = _reports(Path(folder))
        record = {"tier": tier, "case": name, "seed": seed, "judges": {"trainscope": reports}}
        print(json.dumps(record), flush=True)
    return 0


def _reports(folder: Path) -> list[dict[str, Any]]:
    from trainscope.report import build_run_report

    fired: dict[str, int] = {}
    for run in sorted(folder.iterdir()):
        signature = asyncio.run(build_run_report(run))["signal_signature"]
        signals: dict[str, int] = dict(signature["first_steps"])
        if signature["explosion_step"] is not None:
            signals["explosion"] = signature["explosion_step"]
        for name, step in signals.items():
            fired[name] = min(step, fired.get(name, step))
    ranked = sorted(fired.items(), key=lambda signal: signal[1])
    return [
        {"codes": MEANING[name], "step": step, "layers": [], "alarm": True, "confidence": 1.0} for name, step in ranked
    ]


if __name__ == "__main__":
    sys.exit(main())
